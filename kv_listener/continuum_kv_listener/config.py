"""The listener's configuration: its models, its rules, and how a file becomes one.

Decisions C22, C26, C27, J2, J3, J16; S0 "listener". `load_config` is the only way from a file to a
`ListenerConfig`.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from continuum_kv_listener.config_checks import CHECKS
from continuum_kv_listener.serving_config import ListenerTlsConfig, TokenNames, serving_checks
from continuum_shared.config.addresses import is_host_name
from continuum_shared.config.bad_value import BadValue
from continuum_shared.config.decode import decode
from continuum_shared.config.kinds import (
    ByteSize,
    Duration,
    HttpEndpoint,
    Int,
    ListenAddress,
    Reload,
    SectionModel,
    Text,
    ZmqEndpoint,
    choice,
    not_yet,
)
from continuum_shared.config.logging_section import LoggingConfig
from continuum_shared.config.report import ConfigError, Report
from continuum_shared.config.salt_echo import SaltEchoConfig
from continuum_shared.config.source import load_file, load_text


class EngineKind(StrEnum):
    VLLM = "vllm"
    SGLANG = "sglang"


class ZmqMode(StrEnum):
    BIND = "bind"
    CONNECT = "connect"


class TokenCount(StrEnum):
    """What is announced as a prefix's token count (decisions C9)."""

    LONGEST_CHAIN = "longest_chain"
    SHARED_HEAD = "shared_head"


class OnGap(StrEnum):
    """What lost events mean for what was known before them (decisions C17)."""

    SUSPECT = "suspect"
    PURGE = "purge"


class PromptFormatName(StrEnum):
    """How the rendered prompt is read back into messages (decisions C22)."""

    AUTO = "auto"
    CHATML = "chatml"
    LLAMA3 = "llama3"
    MISTRAL = "mistral"
    GEMMA = "gemma"
    DEEPSEEK = "deepseek"
    HARMONY = "harmony"
    CUSTOM = "custom"


class CustomFormat(SectionModel):
    """Literals of a chat template that the listener knows by no name."""

    reload: ClassVar[Reload] = Reload.RESTART
    stand_ins: ClassVar[Mapping[str, object]] = {
        "system_start": "<",
        "system_end": ">",
        "first_user_start": "<",
    }

    system_start: Text = Field(description="Text right before the system prompt.")
    system_end: Text = Field(description="Text right after the system prompt.")
    first_user_start: Text = Field(description="Text right before the first user message.")


class PromptFormatConfig(SectionModel):
    """A family name, or `custom` with its literals. Written as a word or a mapping."""

    reload: ClassVar[Reload] = Reload.RESTART

    name: Annotated[PromptFormatName, choice(PromptFormatName)] = Field(
        PromptFormatName.AUTO, description="`auto` asks the engine to render probe chats."
    )
    custom: CustomFormat | None = Field(None, description="Only with the name custom.")


def _prompt_format(value: object) -> object:
    if isinstance(value, str):
        if value.strip().lower() == "custom":
            raise BadValue(
                "custom needs its literals",
                "write prompt_format: {custom: {system_start: …, system_end: …, "
                "first_user_start: …}}",
            )
        return {"name": value}
    if isinstance(value, dict) and value.get("custom") is not None:
        return {"name": "custom", **value}
    return value


def _models(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _no_repeats(names: tuple[str, ...]) -> tuple[str, ...]:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise BadValue("is listed twice", "remove one", at=(index,))
    return names


def _publisher(text: str) -> str:
    """An IP address, a CIDR block or a host name, which is resolved at start (decisions C26)."""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        if not is_host_name(text) or "/" in text or text.replace(".", "").isdigit():
            raise BadValue(
                "is no IP address, CIDR block or host name", 'such as "10.0.0.7" or "10.0.0.0/8"'
            ) from None
    return text


SourceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEndpoints:
    """The engine's HTTP resources that the listener calls (decisions J16)."""

    detokenize: HttpEndpoint
    tokenize: HttpEndpoint
    health: HttpEndpoint
    metrics: HttpEndpoint
    chat: HttpEndpoint


class SourceConfig(SectionModel):
    """One engine whose events are read."""

    reload: ClassVar[Reload] = Reload.RESTART
    identity: ClassVar[str] = "backend_name"
    stand_ins: ClassVar[Mapping[str, object]] = {
        "backend_name": "-",
        "zmq_endpoint": "tcp://127.0.0.1:5557",
        "model": ["-"],
    }
    later: ClassVar[Mapping[str, str]] = not_yet(
        "discover",
        "poll_interval_ms",
        "trtllm_endpoint",
    )

    backend_name: SourceName = Field(
        description="The router's name of this backend; the stream is `/events/NAME`."
    )
    engine: Annotated[EngineKind, choice(EngineKind, later=("trtllm",))] = Field(
        EngineKind.VLLM, description="What kind of engine it is."
    )
    zmq_endpoint: ZmqEndpoint = Field(
        description="Where the engine publishes: `tcp://HOST:PORT`, `tcp://*:PORT` or `ipc://PATH`."
    )
    zmq_mode: Annotated[ZmqMode | None, choice(ZmqMode)] = Field(
        None,
        description="`bind` waits for the engine, `connect` goes to it. Unset: bind for `*`, "
        "`0.0.0.0` and `::`, connect for a concrete host.",
    )
    zmq_replay_endpoint: ZmqEndpoint | None = Field(
        None, description="The engine's replay socket, asked after a gap and on the first contact."
    )
    zmq_topic: Annotated[str, StringConstraints(max_length=256)] = Field(
        "", description="Only messages whose topic begins so. Empty = all."
    )
    engine_url: HttpEndpoint | None = Field(
        None, description="Base URL of the engine's HTTP side; the endpoints below follow from it."
    )
    detokenize_endpoint: HttpEndpoint | None = Field(
        None, description="The engine's `/detokenize`. Unset: `engine_url` + `/detokenize`."
    )
    tokenize_endpoint: HttpEndpoint | None = Field(
        None, description="The engine's `/tokenize`. Unset: beside detokenize_endpoint."
    )
    model: Annotated[
        tuple[Text, ...],
        BeforeValidator(_models),
        AfterValidator(_no_repeats),
        Field(min_length=1, max_length=256),
    ] = Field(description="Served model name, or a list of them; one record is sent for each.")
    max_prefix_length: Int = Field(
        1024, ge=1, le=1 << 20, description="As prefix_routing.max_prefix_length of the router."
    )
    prompt_format: Annotated[PromptFormatConfig, BeforeValidator(_prompt_format)] = Field(
        default_factory=PromptFormatConfig,
        description="`auto`, a family (chatml, llama3, mistral, gemma, deepseek, harmony) or "
        "`{custom: {system_start, system_end, first_user_start}}`.",
    )
    tokenizer: Text | None = Field(
        None,
        description="Folder with the model's `tokenizer.json` and chat template, used instead of "
        "/detokenize and, where the engine renders no chats, to learn the template. Needs the "
        "extra `tokenizers`.",
    )
    calibrate_by_request: bool = Field(
        False,
        description="Where nothing else tells the template, send the engine one real chat of one "
        "token and read it back from its events.",
    )
    allowed_publishers: tuple[Annotated[str, AfterValidator(_publisher)], ...] = Field(
        (), description="Who may publish: addresses, CIDR blocks, names. Empty = this machine only."
    )
    dp_size: Int = Field(
        1,
        ge=1,
        le=64,
        description="Data-parallel ranks: rank r is at both ports + r, as engines publish.",
    )
    on_gap: Annotated[OnGap, choice(OnGap)] = Field(
        OnGap.SUSPECT,
        description="When lost events cannot be replayed: `suspect` keeps what was known for one "
        "more TTL unless a later event proves it, `purge` drops it at once.",
    )
    token_count: Annotated[TokenCount, choice(TokenCount)] = Field(
        TokenCount.LONGEST_CHAIN,
        description="Count tokens of the longest cached chain, or only of the shared head.",
    )
    max_frame_bytes: ByteSize = Field(
        64 << 20,
        ge=64 << 10,
        le=1 << 30,
        description="A larger message is dropped and counted; twice as large costs a reconnect.",
    )

    @property
    def models(self) -> tuple[str, ...]:
        return self.model

    @property
    def mode(self) -> ZmqMode:
        """What was written, else the rule of decisions C27."""
        if self.zmq_mode is not None:
            return self.zmq_mode
        return ZmqMode.BIND if self.zmq_endpoint.wildcard else ZmqMode.CONNECT

    @property
    def binds(self) -> bool:
        return self.mode is ZmqMode.BIND

    @property
    def endpoints(self) -> EngineEndpoints | None:
        """None when neither an endpoint nor engine_url was given: no text is asked of it then."""
        base = self.engine_url
        if base is not None:
            path = base.target.rstrip("/")
            base = HttpEndpoint(
                scheme=base.scheme, host=base.host, port=base.port, target=f"{path}/detokenize"
            )
        detokenize = self.detokenize_endpoint or base
        if detokenize is None:
            return None
        beside = base or detokenize
        return EngineEndpoints(
            detokenize=detokenize,
            tokenize=self.tokenize_endpoint or detokenize.sibling("tokenize"),
            health=beside.sibling("health"),
            metrics=beside.sibling("metrics"),
            chat=beside.sibling("v1/chat/completions"),
        )


class ListenerSaltEcho(SaltEchoConfig):
    """Read the router's `cache_salt` out of the engines' events: docs/attribution.md."""

    reload: ClassVar[Reload] = Reload.RESTART


class ListenerConfig(SectionModel):
    """Everything the listener's file says, with defaults filled in."""

    reload: ClassVar[Reload] = Reload.RESTART
    later: ClassVar[Mapping[str, str]] = not_yet(event_bus="the router reads /events/{backend}")

    listen: ListenAddress = Field(
        ListenAddress(host="127.0.0.1", port=7817),
        description="`HOST:PORT` or `unix:/path` of the streams, /health, /metrics and /sources.",
    )
    tls: ListenerTlsConfig | None = Field(
        None, description="Serve https with this certificate. Unset = plain http."
    )
    auth_token_env: TokenNames = Field(
        (),
        description="Environment variable with the bearer token that readers must show, or a list "
        "of them while a token is exchanged. Unset = everybody may read. /health needs none.",
    )
    max_subscribers: Int = Field(
        4096, ge=1, le=100_000, description="Event streams open at once, all sources together."
    )
    sources: tuple[SourceConfig, ...] = Field(())
    salt_echo: ListenerSaltEcho = Field(default_factory=ListenerSaltEcho)
    max_chain_tokens: Int = Field(
        16_384, ge=16, le=10_000_000, description="Longest chain that is followed, in tokens."
    )
    max_tracked_blocks: Int = Field(
        100_000, ge=100, le=100_000_000, description="Blocks remembered for each source."
    )
    max_retained_tokens: Int = Field(
        16_777_216, ge=1024, le=1 << 32, description="Token ids remembered for each source."
    )
    reannounce_interval: Duration = Field(
        200.0,
        ge=1,
        le=28_800,
        description="How often a live prefix is told again; a third of the router's TTL.",
    )
    history: Int = Field(
        10_000, ge=1, le=1_000_000, description="Events kept for each source so streams resume."
    )
    logging: LoggingConfig = Field(default_factory=LoggingConfig)


def load_config(path: str, env: Mapping[str, str]) -> tuple[ListenerConfig, Report]:
    """Read a file. The report holds the warnings; any error raises ConfigError with all of them."""
    config, report = decode(
        ListenerConfig, load_file(path, env=env), (*CHECKS, *serving_checks(env))
    )
    if config is None:
        raise ConfigError(report)
    return config, report


def parse_config(
    text: str, *, path: str, env: Mapping[str, str]
) -> tuple[ListenerConfig | None, Report]:
    """Like `load_config` for text at hand, without raising: None when there is any error."""
    return decode(
        ListenerConfig, load_text(text, path=path, env=env), (*CHECKS, *serving_checks(env))
    )
