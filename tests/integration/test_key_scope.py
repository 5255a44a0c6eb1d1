"""User report R5: sessions that share a system prompt, told apart by the hash (decisions A8)."""

from collections import Counter

from support.edge import Edge, edge_config, running
from support.scripted_backend import answers, reply, scripted

SCOPED = """
selection_strategy: PrefixAwareHash
prefix_routing: {enabled: true, key_scope: session, virtual_nodes: 1000}
"""


async def turn(edge: Edge, session: int, number: int) -> str:
    messages = [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": f"turn {number}"},
    ]
    answer = await edge.post(
        {"model": "m", "messages": messages}, headers={"x-session-id": f"s{session}"}
    )
    return answer.headers["x-continuum-backend"]


async def test_a_session_stays_and_sessions_spread() -> None:
    async with (
        scripted(answers(reply())) as one,
        scripted(answers(reply())) as two,
        scripted(answers(reply())) as three,
        scripted(answers(reply())) as four,
        running(edge_config([b.url for b in (one, two, three, four)], SCOPED)) as edge,
    ):
        home = {session: await turn(edge, session, 0) for session in range(40)}
        for number in range(1, 4):
            assert home == {session: await turn(edge, session, number) for session in range(40)}
        assert len(Counter(home.values())) == 4
