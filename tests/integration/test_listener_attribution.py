"""Attribution that an operator can trust: a whole listener, real sockets, an engine that counts."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from continuum_kv_listener.attribution import NO_SALTS
from continuum_shared.cache_salt import SaltIssuer
from continuum_shared.prefix_key import PrefixKey, chat_key_text, derive
from support.chat_templates import CHATML, GEMMA2_LIKE, LLAMA3_LIKE, QWEN_LIKE
from support.fake_cache import FakeCache
from support.kv_publisher import Encoding, KvPublisher, removed, stored
from support.listener_rig import metric, running_listener, source_row, subscribed, until
from support.tiny_engine import WIRE, TinyEngine, serving

SECRET = "the-secret-of-this-test"
SALTS: Mapping[str, object] = {"enabled": True, "secret_env": "SALT"}
ENV = {"SALT": SECRET}
SYSTEM = "You are the harbour master of a small port. Answer in one sentence, and name the tide."
QUESTION = "When may the ferry leave, and who has to wait until the tide has turned?"
TOOL = {
    "type": "function",
    "function": {"name": "tide", "description": "Tide tables.", "parameters": {"type": "object"}},
}


def chat(system: str | None, user: str = QUESTION) -> list[dict[str, object]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": user}]


def key(messages: list[dict[str, object]], model: str = "tiny-chat") -> PrefixKey:
    text = chat_key_text({"messages": messages})
    assert text is not None
    return derive(model, text, 1024)


@pytest.fixture
async def engine() -> AsyncIterator[TinyEngine]:
    made = TinyEngine(template=CHATML)
    async with serving(made):
        yield made


@pytest.fixture
def publisher() -> Iterator[KvPublisher]:
    made = KvPublisher(replay=False)
    yield made
    made.close()


def source(engine: TinyEngine, publisher: KvPublisher, **more: object) -> dict[str, object]:
    return {
        "backend_name": "vllm-1",
        "zmq_endpoint": publisher.endpoint,
        "engine_url": engine.url,
        "model": "tiny-chat",
        **more,
    }


async def row_when(base: str, **wanted: object) -> dict[str, object]:
    """The source's row once it has these values."""
    async with asyncio.timeout(10):
        while True:
            row = await source_row(base, "vllm-1")
            if all(row[name] == value for name, value in wanted.items()):
                return row
            await asyncio.sleep(0.02)


async def follows(base: str, **wanted: object) -> None:
    await row_when(base, connected=True, **wanted)
    await asyncio.sleep(0.15)  # a subscription takes a moment to reach the publisher


def text_calls(engine: TinyEngine) -> int:
    return sum(engine.requests.get(path, 0) for path in ("/tokenize", "/detokenize"))


# -- salt echo ------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_a_verified_salt_needs_no_text(
    engine: TinyEngine, publisher: KvPublisher, encoding: Encoding
) -> None:
    """Decisions C24, issue 4: not one call of /tokenize or /detokenize, from start to end."""
    cache = FakeCache(engine, encoding=encoding)
    messages = chat(SYSTEM)
    salt = SaltIssuer([SECRET]).issue(key(messages), backend="vllm-1", model="tiny-chat")
    async with (
        running_listener([source(engine, publisher)], env=ENV, salt_echo=SALTS) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await follows(base, calibrated=True, attribution="salt")
        event, hashes = cache.chat(messages, salt=salt)
        publisher.publish([event])
        await until(lambda: sub.index() == {key(messages): (len(hashes) * 16, "hot")})
        publisher.publish(cache.remove(hashes))
        await until(lambda: sub.index() == {})
        await asyncio.sleep(0.7)  # longer than calibration would take to begin
        row = await source_row(base, "vllm-1")
        assert (row["attribution"], row["warnings"], row["unattributed"]) == ("salt", [], {})
        assert text_calls(engine) == 0
        sample = 'continuum_listener_verified_salts_total{source="vllm-1"}'
        assert await metric(base, sample) == 1


async def test_a_prompt_past_the_router_is_read_all_the_same(
    engine: TinyEngine, publisher: KvPublisher
) -> None:
    cache = FakeCache(engine)
    async with (
        running_listener([source(engine, publisher)], env=ENV, salt_echo=SALTS) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await follows(base)
        assert text_calls(engine) == 0
        publisher.publish([cache.chat(chat(SYSTEM))[0]])
        await until(lambda: key(chat(SYSTEM)) in sub.index())
        assert text_calls(engine) > 0
        row = await row_when(base, attribution="probe")
        assert row["warnings"] == [NO_SALTS]


async def test_k14_salts_that_do_not_verify_are_dropped_counted_and_told(
    engine: TinyEngine, publisher: KvPublisher
) -> None:
    """User report K14: a wrong secret, and a secret that is missing, show within a minute."""
    cache = FakeCache(engine)
    wrong = SaltIssuer(["another-secret"]).issue(
        key(chat(SYSTEM)), backend="vllm-1", model="tiny-chat"
    )
    for top in ({"salt_echo": SALTS}, {}):
        async with (
            running_listener([source(engine, publisher)], env=ENV, **top) as base,
            subscribed(base, "vllm-1") as sub,
        ):
            await follows(base, calibrated=True)
            event, hashes = cache.chat(chat(SYSTEM), salt=wrong)
            foreign, others = cache.chat(chat(SYSTEM), salt="tenant-7")
            publisher.publish([event, foreign])
            row = await row_when(
                base, unattributed={"bad_salt": len(hashes), "foreign_salt": len(others)}
            )
            (warning,) = [text for text in row["warnings"] if "salt" in text]  # type: ignore[attr-defined]
            assert warning.startswith("1 chains carry a router's salt that does not verify")
            for reason in ("bad_salt", "foreign_salt"):
                line = f'continuum_listener_dropped_total{{reason="{reason}",source="vllm-1"}}'
                assert await metric(base, line) == 1
            assert sub.events == []


async def test_a_rotated_secret_keeps_old_and_new_chains(
    engine: TinyEngine, publisher: KvPublisher
) -> None:
    cache = FakeCache(engine)
    section = {"enabled": True, "secret_env": ["NEW", "OLD"]}
    env = {"NEW": "the-new-secret-of-the-test", "OLD": SECRET}
    async with (
        running_listener([source(engine, publisher)], env=env, salt_echo=section) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await follows(base)
        for number, secret in enumerate(env.values()):
            messages = chat(f"{SYSTEM} {number}")
            salt = SaltIssuer([secret]).issue(key(messages), backend="vllm-1", model="tiny-chat")
            publisher.publish([cache.chat(messages, salt=salt)[0]])
        await until(lambda: len(sub.index()) == 2)
        assert text_calls(engine) == 0


async def test_salts_of_adapters_and_beside_media(
    engine: TinyEngine, publisher: KvPublisher
) -> None:
    """Decisions C25, A3: an image's key is recovered through its salt, and through nothing else."""
    cache = FakeCache(engine)
    issuer = SaltIssuer([SECRET])
    adapter, image = key(chat(SYSTEM), "tiny-lora"), PrefixKey(bytes(range(32)))
    salts = [
        issuer.issue(adapter, backend="vllm-1", model="tiny-lora"),
        issuer.issue(image, backend="vllm-1", model="tiny-chat"),
    ]
    async with (
        running_listener([source(engine, publisher)], env=ENV, salt_echo=SALTS) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await follows(base)
        lora, lora_hashes = cache.chat(chat(SYSTEM), salt=salts[0], lora_name="tiny-lora")
        media, _ = cache.chat(chat(SYSTEM), salt=salts[1], extra=["hash-of-an-image"])
        publisher.publish([lora, media])
        await until(lambda: set(sub.index()) == {adapter, image})
        assert sub.index()[adapter] == (len(lora_hashes) * 16, "hot")
        foreign, _ = cache.chat(chat(SYSTEM), extra=["hash-of-an-image"])
        borrowed, _ = cache.chat(chat(SYSTEM), salt=salts[1], lora_name="tiny-lora")
        publisher.publish([foreign, borrowed])
        reasons = {"foreign_salt": 1, "bad_salt": 1}
        for reason, count in reasons.items():
            line = f'continuum_listener_dropped_total{{reason="{reason}",source="vllm-1"}}'
            async with asyncio.timeout(5):
                while await metric(base, line) != count:
                    await asyncio.sleep(0.02)
        assert set(sub.index()) == {adapter, image}


async def test_without_a_text_endpoint_salts_alone_attribute(
    engine: TinyEngine, publisher: KvPublisher
) -> None:
    cache = FakeCache(engine)
    bare = source(engine, publisher)
    del bare["engine_url"]
    salt = SaltIssuer([SECRET]).issue(key(chat(SYSTEM)), backend="vllm-1", model="tiny-chat")
    async with (
        running_listener([bare], env=ENV, salt_echo=SALTS) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await follows(base)
        publisher.publish([cache.chat(chat(SYSTEM), salt=salt)[0], cache.chat(chat("Other"))[0]])
        await until(lambda: set(sub.index()) == {key(chat(SYSTEM))})
        async with asyncio.timeout(5):
            while not (await source_row(base, "vllm-1"))["warnings"]:
                await asyncio.sleep(0.05)
        row = await source_row(base, "vllm-1")
        assert row["warnings"] == [
            "not calibrated: neither detokenize_endpoint nor tokenizer is set, so that only "
            "prompts with a router's salt are attributed"
        ]
        assert engine.requests == {}


# -- templates ------------------------------------------------------------------------------------

PROMPTS: dict[str, list[dict[str, object]]] = {
    "plain": chat("You are a careful assistant. " * 8),
    "multi-line": chat("Line one.\nLine two.\n- a list\n- of things\n" * 6 + "End."),
    "korean": chat("당신은 항구의 책임자입니다. 한 문장으로 답하고 조수를 말하세요. " * 6),
    "empty lines": chat("Paragraph one.\n\nParagraph two.\n\n\n### Heading\n\nText. " * 5),
    "emoji": chat("Be cheerful 👩‍🚀🧑‍🍳👨‍👩‍👧‍👦🏴‍☠️ and brief 🙂⚙️. " * 6),
    "trailing newlines": chat("Ask for the serial number.\n\n\n" * 6),
    "no system text": chat(None, "Why does my clock stop at noon? 왜 멈추나요? " * 6),
    "assistant first": [
        {"role": "assistant", "content": "Good morning! What may I repair for you today? " * 4},
        {"role": "user", "content": "My clock."},
    ],
}


@pytest.mark.parametrize("block", [5, 16, 64])
@pytest.mark.parametrize("prompt", PROMPTS)
async def test_k8_k12_k13_keys_are_the_routers(
    publisher: KvPublisher, prompt: str, block: int
) -> None:
    """User reports K8, K12, K13: the block size is the event's, hashes are random, and emoji are
    cut by block edges."""
    made = TinyEngine(template=CHATML)
    cache = FakeCache(made, block=block, seed=block)
    messages = [*PROMPTS[prompt], {"role": "user", "content": QUESTION * 9}]
    async with (
        serving(made),
        running_listener([source(made, publisher)]) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await follows(base, calibrated=True)
        event, hashes = cache.chat(messages)
        publisher.publish([event])
        await until(lambda: sub.index() == {key(messages): (len(hashes) * block, "hot")})
        assert (await source_row(base, "vllm-1"))["warnings"] == []


async def test_k13_llama_like_templates_give_the_routers_keys(publisher: KvPublisher) -> None:
    """User report K13, with a template that trims and prints a date: what is trimmed away at the
    ends is what cannot be known, everything inside is."""
    made = TinyEngine(template=LLAMA3_LIKE, bos="<|begin_of_text|>")
    cache = FakeCache(made)
    names = ("plain", "multi-line", "korean", "empty lines", "emoji")
    chats = []
    for name in names:
        system, user = PROMPTS[name]
        chats.append([{**system, "content": str(system["content"]).strip()}, user])
    async with (
        serving(made),
        running_listener([source(made, publisher)]) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await follows(base, calibrated=True)
        publisher.publish([cache.chat(messages)[0] for messages in chats])
        await until(lambda: set(sub.index()) == {key(messages) for messages in chats})


@pytest.mark.parametrize("hashes", ["int", "bytes"])
async def test_k2_hash_forms_change_nothing(publisher: KvPublisher, hashes: str) -> None:
    """User report K2: the same chain once with integers, once with bytes."""
    made = TinyEngine(template=CHATML)
    tokens = made.encode_chat(chat(SYSTEM))
    blocks = len(tokens) // 16
    names: list[int | bytes] = [
        2**63 + n if hashes == "int" else (2**63 + n).to_bytes(32, "big") for n in range(blocks)
    ]
    event = stored(Encoding.MAP, names, None, tokens[: blocks * 16])
    async with (
        serving(made),
        running_listener([source(made, publisher)]) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await follows(base, calibrated=True)
        publisher.publish([event])
        await until(lambda: sub.index() == {key(chat(SYSTEM)): (blocks * 16, "hot")})
        publisher.publish([removed(Encoding.MAP, [each]) for each in reversed(names)])
        await until(lambda: sub.index() == {})


@pytest.mark.parametrize("system", [SYSTEM, None], ids=["system text", "none"])
@pytest.mark.parametrize("template", [CHATML, QWEN_LIKE, None], ids=["none", "behind", "before"])
async def test_tools_before_and_behind_the_system_text(
    publisher: KvPublisher, template: str | None, system: str | None
) -> None:
    made = TinyEngine(template=template)  # the captured template has its tools first
    cache = FakeCache(made)
    messages = [*chat(system, QUESTION * 3), {"role": "assistant", "content": QUESTION * 3}]
    async with (
        serving(made),
        running_listener([source(made, publisher)]) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await follows(base, calibrated=True)
        publisher.publish([cache.chat(messages, tools=[TOOL])[0]])
        await until(lambda: key(messages) in sub.index())


async def test_a_built_in_system_prompt_has_both_keys(publisher: KvPublisher) -> None:
    """Decisions A18."""
    made = TinyEngine(template=QWEN_LIKE)
    builtin = chat("You are Quill, made by a test. You are a helpful assistant.")
    messages = chat(None, QUESTION * 3)
    async with (
        serving(made),
        running_listener([source(made, publisher)]) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await follows(base, calibrated=True)
        publisher.publish([FakeCache(made).chat(messages)[0]])
        await until(lambda: set(sub.index()) == {key(messages), key(builtin)})


async def test_k11_an_adapter_has_keys_of_its_own(
    engine: TinyEngine, publisher: KvPublisher
) -> None:
    """User report K11."""
    cache = FakeCache(engine)
    messages = chat(SYSTEM)
    async with (
        running_listener([source(engine, publisher, model=["tiny-chat", "alias"])]) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await follows(base, calibrated=True)
        publisher.publish([cache.chat(messages, lora_name="tiny-lora")[0]])
        await until(lambda: set(sub.index()) == {key(messages, "tiny-lora")})
        publisher.publish([cache.chat(messages)[0]])
        names = ("tiny-lora", "tiny-chat", "alias")
        await until(lambda: set(sub.index()) == {key(messages, name) for name in names})


async def test_pictures_are_not_announced_as_their_text(publisher: KvPublisher) -> None:
    """Decisions A3: placeholder tokens mark them."""
    made = TinyEngine(template=CHATML)
    messages = chat(None, "What is this? <|image_pad|><|image_pad|> Tell me more. " * 4)
    async with (
        serving(made),
        running_listener([source(made, publisher)]) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await follows(base, calibrated=True)
        event, hashes = FakeCache(made).chat(messages)
        publisher.publish([event])
        await row_when(base, unattributed={"unsupported_content": len(hashes)})
        assert sub.events == []


async def test_a_changed_template_is_learnt_again_and_old_chains_are_asked_again(
    publisher: KvPublisher,
) -> None:
    """Decisions C22: below half of 50 chains; what had fitted nothing is announced after all."""
    made = TinyEngine(template=CHATML)
    cache = FakeCache(made)
    async with (
        serving(made),
        running_listener([source(made, publisher)]) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await follows(base, calibrated=True)
        made.template = LLAMA3_LIKE  # a template that prints a date; nobody told the listener
        chats = [chat(f"{number} {SYSTEM}") for number in range(60)]
        publisher.publish([cache.chat(messages)[0] for messages in chats])
        await until(lambda: set(sub.index()) == {key(messages) for messages in chats}, 20)
        row = await source_row(base, "vllm-1")
        assert row["unattributed"] == {}


async def test_what_a_template_makes_impossible_is_told_three_times(
    publisher: KvPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    """Decisions C23: in /sources, in a metric, and in one warning."""
    made = TinyEngine(template=LLAMA3_LIKE, bos="<|begin_of_text|>")
    with caplog.at_level(logging.WARNING, "continuum_kv_listener"):
        async with serving(made), running_listener([source(made, publisher)]) as base:
            row = await row_when(base, calibrated=True)
            trims = 'continuum_listener_template_limits{limit="trims_system",source="vllm-1"}'
            alters = 'continuum_listener_template_limits{limit="alters_text",source="vllm-1"}'
            assert (await metric(base, trims), await metric(base, alters)) == (1, 0)
    told = row["warnings"]
    assert isinstance(told, list)
    assert "the template trims system prompts: those with white space at either end are not " in (
        told[0] + told[1] + told[2]
    )
    warned = [record for record in caplog.records if "consider salt echo" in record.getMessage()]
    assert len(warned) == 1


# -- other ways to a format -----------------------------------------------------------------------


def model_folder(path: Path, template: str) -> Path:
    (path / "tokenizer.json").write_bytes((WIRE / "model" / "tokenizer.json").read_bytes())
    (path / "chat_template.jinja").write_text(template)
    return path


@pytest.mark.parametrize(("dialect", "mode"), [("vllm", "probe"), ("sglang-old", "tokenizer")])
async def test_a_local_tokenizer_replaces_detokenize(
    publisher: KvPublisher, tmp_path: Path, dialect: str, mode: str
) -> None:
    """Decisions C22: the engine's own template comes first, where it renders chats."""
    made = TinyEngine(template=CHATML, dialect=dialect)
    folder = model_folder(tmp_path, CHATML)
    messages = chat(SYSTEM)
    async with (
        serving(made),
        running_listener([source(made, publisher, tokenizer=str(folder))]) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await follows(base, calibrated=True, attribution=mode)
        publisher.publish([FakeCache(made).chat(messages)[0]])
        await until(lambda: set(sub.index()) == {key(messages)})
        assert "/detokenize" not in made.requests


async def test_a_local_tokenizer_needs_no_engine_at_all(
    publisher: KvPublisher, tmp_path: Path
) -> None:
    made = TinyEngine(template=QWEN_LIKE)
    bare = source(made, publisher, tokenizer=str(model_folder(tmp_path, QWEN_LIKE)))
    del bare["engine_url"]
    messages = chat(SYSTEM)
    async with running_listener([bare]) as base, subscribed(base, "vllm-1") as sub:
        await follows(base, calibrated=True, attribution="tokenizer")
        publisher.publish([FakeCache(made).chat(messages, tools=[TOOL])[0]])
        await until(lambda: set(sub.index()) == {key(messages)})


@pytest.mark.parametrize("template", [CHATML, QWEN_LIKE, LLAMA3_LIKE], ids=["ml", "qwen", "llama"])
async def test_one_real_chat_teaches_where_nothing_else_does(
    publisher: KvPublisher, template: str
) -> None:
    """Decisions C22 (3): off unless it is allowed, and then a single chat of one token."""
    made = TinyEngine(template=template, dialect="sglang-old")
    cache = FakeCache(made)
    made.on_chat = lambda tokens: publisher.publish([cache.tokens(tokens)[0]])
    messages = chat(SYSTEM)
    async with (
        serving(made),
        running_listener([source(made, publisher, calibrate_by_request=True)]) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await follows(base, calibrated=True, attribution="request")
        publisher.publish([cache.chat(messages)[0]])
        await until(lambda: key(messages) in sub.index())
        assert made.requests["/v1/chat/completions"] == 1
        row = await source_row(base, "vllm-1")
        assert any("learnt from a single chat" in text for text in row["warnings"])  # type: ignore[attr-defined]


async def test_no_real_chat_is_sent_unasked(publisher: KvPublisher) -> None:
    made = TinyEngine(template=CHATML, dialect="sglang-old")
    async with serving(made), running_listener([source(made, publisher)]) as base:
        await row_when(base, calibrated=False, attribution="none", connected=True)
        async with asyncio.timeout(5):
            while "/tokenize" not in made.requests:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        row = await source_row(base, "vllm-1")
        assert "calibrate_by_request" in str(row["warnings"])
        assert "/v1/chat/completions" not in made.requests


async def test_k14_a_wrong_model_name_is_told(engine: TinyEngine, publisher: KvPublisher) -> None:
    """User report K14: distinct from an engine that does not answer, and from a wrong secret."""
    async with running_listener([source(engine, publisher, model="typo")]) as base:
        async with asyncio.timeout(5):
            while "under this model name" not in str(
                (await source_row(base, "vllm-1"))["warnings"]
            ):
                await asyncio.sleep(0.02)
    dead = source(engine, publisher, engine_url="http://127.0.0.1:9")
    async with running_listener([dead]) as base:
        row = await row_when(base, calibrated=False)
        assert "does not answer /tokenize" in str(row["warnings"])


async def test_a_template_without_system_texts_says_so(publisher: KvPublisher) -> None:
    made = TinyEngine(template=GEMMA2_LIKE, bos="<bos>")
    messages = chat(None, "Why does my clock stop at noon, and never at night? " * 5 + "Why?")
    async with (
        serving(made),
        running_listener([source(made, publisher)]) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await follows(base, calibrated=True)
        whole = [*messages, {"role": "assistant", "content": "It rests. " * 9}]
        publisher.publish([FakeCache(made).chat(whole)[0]])
        await until(lambda: set(sub.index()) == {key(messages)})
        assert "no system role" in str((await source_row(base, "vllm-1"))["warnings"])
