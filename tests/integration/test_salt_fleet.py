"""Salt echo from end to end: real processes, simulated engines, nobody reads a prompt back."""

from support.real_fleet import Load, running_fleet

SECRET = "the-secret-of-the-whole-fleet"


async def test_the_index_follows_salted_caches_without_a_question(tmp_path):
    """Also when the listener comes back: what it asks for is the replay, and no text."""
    async with running_fleet(tmp_path, SECRET) as fleet:
        async with Load(fleet) as load:
            await load.served(120)
        await fleet.agrees_within(5.0)
        await fleet.kill("listener")
        await fleet.start_listener()
        async with Load(fleet) as load:
            await load.served(60)
        assert set(load.statuses) == {200}
        await fleet.agrees_within(5.0)
        assert any(fleet.index(name) for name in ("e1", "e2"))
        async with fleet.session.get(f"http://{fleet.listen}/metrics") as response:
            metrics = await response.text()
        async with fleet.session.get(f"http://{fleet.listen}/sources") as response:
            rows = (await response.json())["sources"]
    for name in ("e1", "e2"):
        for result in ("answered", "failed"):
            line = f'continuum_listener_questions_total{{result="{result}",source="{name}"}} 0.0'
            assert line in metrics
    assert [row["attribution"] for row in rows] == ["salt", "salt"]
    assert [row["unattributed"] for row in rows] == [{}, {}]
