import hashlib

import orjson

from continuum_router.backends.pieces import PIECE, piece_end, whole_pieces
from continuum_router.providers.piecer import MAX_PIECES, ON_LOOP, Piecer, chain, tenant_of
from continuum_router.providers.prepare import sort_headers
from continuum_router.request import Endpoint, RequestRules, parse_generate, parse_opaque

RULES = RequestRules(aliases={"nick": "real"})


def request(text="x" * 5000, *, model="m", rules=RULES, **more):
    body = {"model": model, "messages": [{"role": "user", "content": text}], **more}
    return parse_generate(Endpoint.CHAT, orjson.dumps(body), rules)


def first(piecer=None, tenant=b"", **how):
    return (piecer or Piecer(RULES)).of(request(**how), tenant).digests[0]


def test_the_chain_by_hand():
    data = bytes(range(256)) * 20
    known, expected, at = b"seed", [], 0
    for depth in range(1, whole_pieces(len(data)) + 1):
        known = hashlib.sha256(known + data[at : piece_end(depth)]).digest()[:16]
        expected.append(known)
        at = piece_end(depth)
    assert chain(b"seed", data) == tuple(expected)
    assert len(expected) == 4


def test_every_length_has_its_whole_pieces():
    for size in (0, 511, 512, 1023, 1024, 2047, 2048, 4095, 4096, 4097, 20480):
        assert len(chain(b"", bytes(size))) == whole_pieces(size)


def test_prompts_agree_as_far_as_they_are_equal():
    one, other = chain(b"", b"a" * 9000), chain(b"", b"a" * 4100 + b"b" * 4900)
    assert one[:4] == other[:4]
    assert one[4] != other[4]


def test_an_endless_prompt_has_a_bounded_chain():
    assert len(chain(b"", bytes(PIECE * (MAX_PIECES + 50)))) == MAX_PIECES + 2


def test_what_separates_caches_separates_chains():
    plain = first()
    assert first(model="other") != plain
    assert first(cache_salt="s") != plain
    assert first(extra_key="s") == first(cache_salt="s")
    assert first(model="nick") == first(model="real")


def test_tenants_share_unless_told_not_to():
    strict = Piecer(RULES, per_tenant=True)
    assert first(tenant=b"a") == first(tenant=b"b") == first()
    assert len({first(strict, b"a"), first(strict, b"b"), first()}) == 3


def test_who_asks_is_its_credentials():
    one = sort_headers([(b"Authorization", b"Bearer 1"), (b"X-Other", b"1")])
    same = sort_headers([(b"authorization", b"Bearer 1"), (b"X-Other", b"2")])
    other = sort_headers([(b"Authorization", b"Bearer 2")])
    assert tenant_of(one) == tenant_of(same) != tenant_of(other)
    assert tenant_of(sort_headers([])) == b""
    assert b"Bearer" not in tenant_of(one)


def test_pieces_carry_size_and_the_key_that_events_use():
    asked = request()
    pieces = Piecer(RULES).of(asked)
    assert (pieces.size, pieces.group, pieces.media) == (5006, asked.prefix, ())
    salted = request(cache_salt="s")
    assert Piecer(RULES).of(salted).group == b""
    assert Piecer(RULES).of(request(rules=RequestRules(want_keys=False))).group == b""


def test_what_is_no_prompt_has_no_pieces():
    assert Piecer(RULES).of(parse_opaque(Endpoint.PASSTHROUGH, b"{}")) is None


async def test_long_prompts_are_cut_beside_the_loop():
    asked = request("y" * (ON_LOOP + 1))
    piecer = Piecer(RULES)
    assert piecer.is_long(asked.raw)
    assert not piecer.is_long(request().raw)
    assert await piecer.of_long(asked) == piecer.of(asked)
    assert ON_LOOP == 1 << 20
