"""The `server` section: where clients come in (decisions H3, H6, H8, J2, J19)."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from continuum_router.config.management import is_management
from continuum_shared.config.bad_value import BadValue, echo
from continuum_shared.config.kinds import (
    ByteSize,
    Duration,
    IpNetwork,
    ListenAddress,
    Reload,
    SectionModel,
    not_yet,
)


class RoutingHeaders(StrEnum):
    """Who sees `x-continuum-backend` and `x-continuum-route`."""

    ALWAYS = "true"
    NEVER = "false"
    AUTHENTICATED = "authenticated"


def _routing_headers(value: object) -> object:
    if isinstance(value, bool):
        return RoutingHeaders.ALWAYS if value else RoutingHeaders.NEVER
    if isinstance(value, str) and value in {member.value for member in RoutingHeaders}:
        return RoutingHeaders(value)
    raise BadValue(f"{echo(value)}is not a known value", "known: true, false, authenticated")


def _plain(value: RoutingHeaders) -> bool | str:
    return value.value if value is RoutingHeaders.AUTHENTICATED else value is RoutingHeaders.ALWAYS


_OWN_PATHS = ("/health", "/healthz", "/metrics", "/v1/models", "/admin")
_PASSTHROUGH = re.compile(r"(/[A-Za-z0-9_~:@!$&'()+,;=-][A-Za-z0-9._~:@!$&'()+,;=-]*)+(/\*)?")


def _passthrough(path: str) -> str:
    if not _PASSTHROUGH.fullmatch(path) or len(path) > 256:
        raise BadValue("is not a path", 'such as "/v1/messages" or "/v1/files/*"')
    plain = path.removesuffix("/*")
    if any(plain == own or plain.startswith(own + "/") for own in _OWN_PATHS):
        raise BadValue("is a path of the router itself", "remove it")
    if plain == "/v1" and path.endswith("/*"):
        raise BadValue("covers paths of the router itself", "list the paths below it")
    if is_management(plain):
        raise BadValue(
            "is a management path of engines and is never passed on", "call the engine itself"
        )
    return path


class ServerConfig(SectionModel):
    """The listening side of the router."""

    reload: ClassVar[Reload] = Reload.RESTART
    later: ClassVar[Mapping[str, str]] = not_yet(
        "max_concurrent_requests", workers="the router runs in one process"
    )

    listen: ListenAddress = Field(
        ListenAddress(host="127.0.0.1", port=8080),
        description='`HOST:PORT`, `[::1]:PORT` or `unix:/path`. "0.0.0.0:8080" for every address.',
    )
    max_body_bytes: ByteSize = Field(
        64 << 20, ge=1024, le=4 << 30, description="Largest request body; more is answered 413."
    )
    drain_timeout: Duration = Field(
        30.0, ge=0, le=3600, description="How long SIGTERM lets running requests finish."
    )
    routing_headers: Annotated[
        RoutingHeaders,
        BeforeValidator(_routing_headers),
        PlainSerializer(_plain),
        WithJsonSchema({"enum": [True, False, "authenticated"]}),
    ] = Field(
        RoutingHeaders.ALWAYS,
        description="Who gets `x-continuum-backend` and `x-continuum-route`: `true` everybody, "
        "`false` nobody, `authenticated` callers with a key. Say false on an open edge.",
    )
    watch_config: bool = Field(
        True, description="Reload when the content of the configuration file changes."
    )
    fast_path: bool = Field(
        True,
        description="Take ordinary requests by the fast path, before aiohttp's parser. `false`: "
        "every request goes the general way; the answers are the same.",
    )
    sse_keepalive: Duration = Field(
        0.0,
        ge=0,
        le=3600,
        json_schema_extra={"reload": Reload.HOT.value},
        description="Send the comment `: ping` in a stream that was silent for so long, after its "
        "first event; 0 = never.",
    )
    passthrough_paths: tuple[Annotated[str, AfterValidator(_passthrough)], ...] = Field(
        (),
        description="More paths to pass on to backends, such as `/v1/messages`; a final `/*` "
        "stands for everything below. Management paths of engines cannot be listed.",
    )
    rewrite_response_model: bool = Field(
        True,
        description="An answer to a request for an alias names the alias, not the real model.",
    )
    trusted_proxies: tuple[IpNetwork, ...] = Field(
        (),
        description="Peers (addresses or CIDR blocks) whose Forwarded and X-Forwarded-* count.",
    )
