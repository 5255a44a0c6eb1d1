import pytest

from continuum_router.backends.pieces import Pieces, piece_end, whole_pieces


def test_where_pieces_end():
    # design/routing.md 6.2: 512 B, 1 KiB, 2 KiB, then every 2 KiB
    assert [piece_end(depth) for depth in range(7)] == [0, 512, 1024, 2048, 4096, 6144, 8192]
    assert piece_end(-1) == 0


SIZES = {0: 0, 511: 0, 512: 1, 1023: 1, 1024: 2, 2047: 2, 2048: 3, 4095: 3, 4096: 4, 20480: 12}


@pytest.mark.parametrize("size", SIZES)
def test_only_whole_pieces_count(size):
    assert whole_pieces(size) == SIZES[size]
    assert piece_end(whole_pieces(size)) <= size < piece_end(whole_pieces(size) + 1)


def test_a_prompt_measures_its_beginning():
    pieces = Pieces(digests=(b"a", b"b", b"c"), size=3000, media=(100, 600, 2500))
    assert [pieces.text_bytes(depth) for depth in (0, 1, 3, 4)] == [0, 512, 2048, 3000]
    assert [pieces.media_within(depth) for depth in (0, 1, 2, 3, 4)] == [0, 1, 2, 2, 3]
    assert Pieces(digests=(), size=5).media_within(3) == 0


def test_digests_stay_out_of_logs():
    assert "secret" not in repr(Pieces(digests=(b"secret",), size=1, group=b"secret"))
