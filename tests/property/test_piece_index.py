"""The piece index against the plainest model of itself: sets of pieces by backend and prefix."""

import hashlib

from hypothesis import given, settings
from hypothesis import strategies as st

from continuum_router.backends.pieces import Pieces, piece_end
from continuum_router.kv_index.piece_index import PieceIndex

NAMES = ("a", "b", "c")
texts = st.text("xyz", min_size=1, max_size=6)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("sent"), st.sampled_from(NAMES), texts),
        st.tuples(st.just("used"), st.sampled_from(NAMES), texts),
        st.tuples(st.just("unsent"), st.sampled_from(NAMES), texts),
        st.tuples(st.just("evict"), st.sampled_from(NAMES), st.sampled_from("xyz")),
        st.tuples(st.just("purge"), st.sampled_from(NAMES), st.just("")),
        st.tuples(st.just("forget"), st.sampled_from(NAMES), st.just("")),
    ),
    max_size=40,
)


def prompt(text: str) -> Pieces:
    """One piece a letter; its first letter is the prefix that events know it by."""
    digests = tuple(hashlib.sha256(text[: n + 1].encode()).digest()[:16] for n in range(len(text)))
    return Pieces(digests=digests, size=piece_end(len(text)), group=text[:1].encode())


class Model:
    """Backend → prefix → beginnings of prompts that are held."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, set[str]]] = {name: {} for name in NAMES}
        self.known: set[str] = set()

    def act(self, what: str, name: str, text: str) -> None:
        groups = self.held[name]
        starts = {text[: n + 1] for n in range(len(text))}
        if what == "sent" or (what == "used" and name in self.known):
            self.known.add(name)
            groups.setdefault(text[:1], set()).update(starts)
        elif what == "unsent":
            groups.get(text[:1], set()).difference_update(starts)
        elif what == "evict":
            groups.pop(text, None)
        elif what in ("purge", "forget"):
            groups.clear()
            if what == "forget":
                self.known.discard(name)

    def depth(self, name: str, text: str) -> int:
        found = self.held[name].get(text[:1], set())
        depth = 0
        while depth < len(text) and text[: depth + 1] in found:
            depth += 1
        return depth


@given(steps, st.lists(texts, max_size=4))
@settings(deadline=None)
def test_the_index_knows_what_the_model_knows(
    acts: list[tuple[str, str, str]], asked: list[str]
) -> None:
    index, model = PieceIndex(max_entries=10_000, ttl=600.0), Model()
    for now, (what, name, text) in enumerate(acts):
        if what in ("sent", "used"):
            getattr(index, what)(name, prompt(text), float(now))
        elif what == "unsent":
            index.unsent(name, prompt(text), 0)
        elif what == "evict":
            index.evict(name, text.encode())
        else:
            getattr(index, what)(name)
        model.act(what, name, text)
    for text in asked + [text for _, _, text in acts if text]:
        assert index.depths(prompt(text), NAMES) == [model.depth(n, text) for n in NAMES]
    held = [len(group) for groups in model.held.values() for group in groups.values()]
    assert index.stats().pairs == sum(held)
    assert sum(mask.bit_count() for mask in index._masks.values()) == sum(held)
    for shelf in index._shelves.values():
        assert (
            abs(shelf.size - sum(w for g in shelf.groups.values() for _, w in g.pieces.values()))
            < 1e-6
        )


@given(st.lists(st.tuples(st.sampled_from(NAMES), texts), min_size=1, max_size=60))
@settings(deadline=None)
def test_bounds_hold_whatever_comes(sends: list[tuple[str, str]]) -> None:
    index = PieceIndex(max_entries=12, ttl=600.0, room_tokens=20 * 512)
    for now, (name, text) in enumerate(sends):
        index.sent(name, prompt(text), float(now))
        assert index.stats().pairs <= 12
    # what came last is still there, save what a tenth of its backend's share may take
    name, text = sends[-1]
    assert index.depths(prompt(text), (name,))[0] >= len(text) - 1
    assert index.expire(10_000.0) <= 12
    index.expire(10_000.0)
    assert (index.stats().pairs, len(index._masks)) == (0, 0)
