"""Reading how much KV room an engine has, and when it is told on."""

import asyncio

import pytest

from continuum_router.backends.pool import Pool
from continuum_router.config.backends import BackendType
from continuum_router.models.catalog import FetchFailed
from continuum_router.models.kv_room import EVERY, RETRY, keep_rooms, read_room
from support.backends import backend, backends

VLLM = b"""# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="27447"} 1.0
"""
PAGES = {
    "vllm": (VLLM, 16 * 27447),
    "two engines behind one address": (VLLM + VLLM, 2 * 16 * 27447),
    "sglang": (b'sglang:max_total_num_tokens{model_name="m"} 123456.0\n', 123456),
    "sglang repeats it": (b"sglang:max_total_num_tokens 1.5e+05\n" * 4, 150000),
    "nothing of the kind": (b"process_start_time_seconds 1.0\n", None),
    "not known yet": (VLLM.replace(b"27447", b"None"), None),
    "no number": (b"sglang:max_total_num_tokens ..\n", None),
    "nought": (b"sglang:max_total_num_tokens 0\n", None),
    "absurd": (b"sglang:max_total_num_tokens 9e+20\n", None),
    "empty": (b"", None),
    "not text": (b"\xff\x00" * 50, None),
}


@pytest.mark.parametrize("case", PAGES)
def test_pages(case: str) -> None:
    page, room = PAGES[case]
    assert read_room(page) == room


class Rounds:
    """Plays a few rounds of pages by backend, then stops."""

    def __init__(self, *rounds: dict[str, bytes | None]) -> None:
        self.rounds, self.told, self.slept = list(rounds), [], []

    async def fetch(self, backend, path):
        assert path == "/metrics"
        page = self.rounds[0][backend.name]
        if page is None:
            raise FetchFailed("status_404")
        return page

    async def sleep(self, seconds):
        self.slept.append(seconds)
        self.rounds.pop(0)
        if not self.rounds:
            raise asyncio.CancelledError

    async def play(self, members):
        with pytest.raises(asyncio.CancelledError):
            await keep_rooms(
                lambda: Pool(members),
                lambda name, room: self.told.append((name, room)),
                fetch=self.fetch,
                sleep=self.sleep,
            )


async def test_only_a_new_figure_is_told() -> None:
    one = {"a": VLLM, "b": None}
    rounds = Rounds(one, one, {"a": VLLM + VLLM, "b": VLLM})
    await rounds.play(backends("a", "b"))
    assert rounds.told == [("a", 439152), ("a", 878304), ("b", 439152)]
    assert rounds.slept == [RETRY, RETRY, EVERY]


async def test_who_cannot_publish_is_not_asked() -> None:
    plain = backend("a")
    object.__setattr__(plain, "type", BackendType.GENERIC)
    rounds = Rounds({})
    await rounds.play((plain,))
    assert (rounds.told, rounds.slept) == ([], [EVERY])
