"""A model's and a kind's limits, as the configuration resolves them."""

from continuum_router.upstream.call_limits import base_limits, model_limits
from continuum_router.upstream.deadlines import Limits
from support.config_files import good_router

SECTION = good_router(
    """
    timeouts:
      request:
        streaming: {first_byte: 100s}
        model_overrides:
          all:
            standard: {total: 1s, first_byte: 500ms}
            streaming: {first_byte: 2s, chunk_interval: 0, total: 4s}
            image_generation: {total: 5s}
          some.v1/x:
            streaming: {total: 1200s}
          none: {}
    """
).timeouts


def test_without_overrides() -> None:
    base = base_limits(SECTION)
    assert base.standard == Limits(total=180.0)
    assert base.streaming == Limits(total=600.0, first_byte=100.0, chunk_interval=30.0)
    assert base.image_generation == Limits(total=180.0)


def test_an_override_replaces_what_it_names() -> None:
    models = model_limits(SECTION)
    assert set(models) == {"all", "some.v1/x", "none"}
    assert models["none"] == base_limits(SECTION)
    assert models["all"].standard == Limits(total=1.0)
    assert models["all"].streaming == Limits(total=4.0, first_byte=2.0, chunk_interval=0.0)
    assert models["all"].image_generation == Limits(total=5.0)
    some = models["some.v1/x"]
    assert some.streaming == Limits(total=1200.0, first_byte=100.0, chunk_interval=30.0)
    assert some.standard is not None
    assert some.standard == Limits(total=180.0)


def test_the_kind_of_a_request() -> None:
    limits = model_limits(SECTION)["all"]
    chat, images = "/v1/chat/completions", "/v1/images/generations"
    assert limits.of(chat, stream=False) is limits.standard
    assert limits.of(chat, stream=True) is limits.streaming
    assert limits.of(images, stream=False) is limits.image_generation
    assert limits.of(images, stream=True) is limits.image_generation
