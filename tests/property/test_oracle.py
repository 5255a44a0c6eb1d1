"""What a fresh subscriber sees is what the engine holds; or, where losses cannot be recovered, no
more than that once they had their time. ``make oracle`` runs a thousand histories a kind."""

import pytest

from support.oracle_history import KINDS, run

HISTORIES = 50


@pytest.mark.parametrize("kind", KINDS)
def test_the_stream_says_what_the_engine_holds(kind: str) -> None:
    for seed in range(1, HISTORIES + 1):
        run(kind, seed)
