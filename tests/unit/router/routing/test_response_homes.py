from continuum_router.routing.response_homes import MAX_ID, ResponseHomes


def test_the_last_word_counts() -> None:
    homes = ResponseHomes()
    homes.remember("r1", "a")
    homes.remember("r1", "b")
    assert (homes.home_of("r1"), homes.home_of("r2"), len(homes)) == ("b", None, 1)


def test_the_least_recently_used_goes_first() -> None:
    homes = ResponseHomes(limit=2)
    homes.remember("r1", "a")
    homes.remember("r2", "b")
    assert homes.home_of("r1") == "a"
    homes.remember("r3", "c")
    assert [homes.home_of(name) for name in ("r1", "r2", "r3")] == ["a", None, "c"]


def test_what_is_no_id_is_not_kept() -> None:
    homes = ResponseHomes()
    homes.remember("", "a")
    homes.remember("x" * (MAX_ID + 1), "a")
    assert len(homes) == 0
