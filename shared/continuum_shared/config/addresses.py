"""Addresses as values: what we listen on, backends, HTTP endpoints, ZeroMQ endpoints, networks.

Each class has `parse(text)`, which raises `BadValue`, and prints as text that parses to itself.
No name is resolved and nothing is opened here. Credentials inside a URL are refused, so none of
these can hold a secret (decisions G11; S2 masks what it allows).
"""

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from continuum_shared.config.bad_value import BadValue

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}\.?$){_LABEL}(?:\.{_LABEL})*\.?")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_LENGTH = 2048


class _ParsedText:
    """Makes a class with `parse` and `__str__` a pydantic type. Internal base."""

    __slots__ = ()
    example: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    no_credentials: ClassVar[str] = "URLs hold no credentials"

    @classmethod
    def parse(cls, text: str) -> Self:
        raise NotImplementedError

    @classmethod
    def _validate(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise BadValue(f"must be {cls.kind} written as text", f'such as "{cls.example}"')
        return cls.parse(str(value))

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "description": cls.kind, "examples": [cls.example]}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpEndpoint(_ParsedText):
    """An http or https URL of one resource. `target` is the path as sent, at least "/"."""

    kind: ClassVar[str] = "an http:// or https:// URL"
    example: ClassVar[str] = "http://10.0.0.5:8000/path"

    scheme: str
    host: str
    port: int
    target: str = "/"

    @classmethod
    def parse(cls, text: str) -> Self:
        parts = _split_url(text, cls)
        return cls(
            scheme=parts.scheme, host=_host(parts), port=_port(parts), target=parts.path or "/"
        )

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """Host header value: brackets for IPv6, the scheme's own port left out."""
        return _authority(self.scheme, self.host, self.port)

    def sibling(self, name: str) -> Self:
        """The resource beside this one: `http://h/a/detokenize` → `http://h/a/NAME`."""
        target = self.target.rpartition("/")[0] + "/" + name
        return type(self)(scheme=self.scheme, host=self.host, port=self.port, target=target)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendUrl(_ParsedText):
    """Where a backend listens: http, https or a unix socket (decisions P9).

    `path` is a base path without a trailing slash, "" for most; a final `/v1` is dropped, because
    requests carry it. `socket_path` is set for unix sockets only, whose host is "localhost".
    """

    kind: ClassVar[str] = "an http://, https:// or unix:// URL"
    example: ClassVar[str] = "http://10.0.0.5:8000"
    no_credentials: ClassVar[str] = "URLs hold no credentials; use api_key"

    scheme: str
    host: str
    port: int
    path: str = ""
    socket_path: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        if text.lower().startswith("unix:"):
            return cls(scheme="unix", host="localhost", port=0, socket_path=_socket_path(text))
        parts = _split_url(text, cls)
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        return cls(scheme=parts.scheme, host=_host(parts), port=_port(parts), path=path)

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """Host header value: brackets for IPv6, the scheme's own port left out."""
        return _authority(self.scheme, self.host, self.port)

    def __str__(self) -> str:
        if self.socket_path:
            return f"unix://{self.socket_path}"
        return f"{self.scheme}://{self.authority}{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress(_ParsedText):
    """What a daemon listens on: `host:port`, `[::1]:port`, `unix:/path` (decisions H3, J2).

    Port 0 lets the system choose. For a unix socket host is "" and port 0.
    """

    kind: ClassVar[str] = "an address to listen on"
    example: ClassVar[str] = "127.0.0.1:8080"

    host: str = ""
    port: int = 0
    socket_path: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        if text.lower().startswith("unix:"):
            return cls(socket_path=_socket_path(text))
        host, colon, port = text.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise BadValue(
                "must be HOST:PORT with a port from 0 to 65535",
                f'such as "{cls.example}", "[::1]:8080" or "unix:/run/router.sock"',
            )
        if not host:
            raise BadValue("names no host", 'write "0.0.0.0" or "[::]" to listen on every address')
        return cls(host=_bare_host(host), port=int(port))

    @property
    def loopback(self) -> bool:
        """True when only this machine can reach it."""
        return bool(self.socket_path) or is_loopback(self.host)

    def __str__(self) -> str:
        if self.socket_path:
            return f"unix:{self.socket_path}"
        return f"{_bracketed(self.host)}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqEndpoint(_ParsedText):
    """A ZeroMQ endpoint, `tcp://HOST:PORT` or `ipc://PATH`. For ipc host is "" and port 0."""

    kind: ClassVar[str] = "a tcp:// or ipc:// endpoint"
    example: ClassVar[str] = "tcp://10.0.0.5:5557"

    host: str = ""
    port: int = 0
    ipc_path: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        scheme, separator, rest = text.partition("://")
        if separator and scheme.lower() == "ipc" and rest and len(text) < 108:
            return cls(ipc_path=rest)
        host, colon, port = rest.rpartition(":")
        if not separator or scheme.lower() != "tcp" or not colon:
            raise BadValue(f"must be {cls.kind}", f'such as "{cls.example}"')
        if not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535:
            raise BadValue("needs a port from 1 to 65535", f'such as "{cls.example}"')
        return cls(host="*" if host == "*" else _bare_host(host), port=int(port))

    @property
    def wildcard(self) -> bool:
        """True when the host means every interface: such an address can only be bound."""
        return self.host in {"*", "0.0.0.0", "::"}

    @property
    def loopback(self) -> bool:
        return bool(self.ipc_path) or is_loopback(self.host)

    def of_rank(self, rank: int) -> Self:
        """Where data-parallel rank ``rank`` is: engines add it to the port (decisions C18)."""
        return replace(self, port=self.port + rank) if rank else self

    def __str__(self) -> str:
        if self.ipc_path:
            return f"ipc://{self.ipc_path}"
        return f"tcp://{_bracketed(self.host)}:{self.port}"


def is_loopback(host: str) -> bool:
    """True for localhost and the loopback addresses; a name is never resolved."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_network(text: str) -> Network:
    """An address or a CIDR block → network; raises BadValue. Host bits may be set."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise BadValue(
            "must be an IP address or a CIDR block", 'such as "10.0.0.7" or "10.0.0.0/8"'
        ) from None


def is_host_name(text: str) -> bool:
    return bool(_HOST_NAME.fullmatch(text))


def _split_url(text: str, kind: type[_ParsedText]) -> SplitResult:
    hint = f'such as "{kind.example}"'
    if len(text) > _MAX_LENGTH:
        raise BadValue(f"is longer than {_MAX_LENGTH} characters", hint)
    if any(ch <= " " or ch >= "\x7f" for ch in text):
        raise BadValue("contains a space, a line break or a character outside ASCII", hint)
    try:
        parts = urlsplit(text)
    except ValueError:
        raise BadValue(f"must be {kind.kind}", hint) from None
    if parts.scheme not in _DEFAULT_PORTS or not text.lower().startswith(f"{parts.scheme}://"):
        raise BadValue(f"must be {kind.kind}", hint)
    if "@" in parts.netloc:
        raise BadValue("carries a user name or password", kind.no_credentials)
    for mark, name in (("#", "a fragment"), ("?", "a query, which could hold a secret")):
        if mark in text:
            raise BadValue(f"carries {name}", f"leave out everything from the {mark} on")
    return parts


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    return _bare_host(f"[{host}]" if ":" in host else host)


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0 or parts.netloc.endswith(":"):
        raise BadValue("has a port that is not a number from 1 to 65535")
    return port if port is not None else _DEFAULT_PORTS[parts.scheme]


def _bare_host(text: str) -> str:
    """A host name, an IPv4 address or a bracketed IPv6 address → without brackets."""
    if text.startswith("[") and text.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(text[1:-1]))
        except ValueError:
            raise BadValue("has brackets around something that is no IPv6 address") from None
    if ":" in text:
        raise BadValue("has an IPv6 address without brackets", 'write it as "[::1]:8080"')
    if not _HOST_NAME.fullmatch(text):
        raise BadValue("has no valid host name or IP address")
    return text.lower()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _authority(scheme: str, host: str, port: int) -> str:
    if port in {0, _DEFAULT_PORTS.get(scheme)}:
        return _bracketed(host)
    return f"{_bracketed(host)}:{port}"


def _socket_path(text: str) -> str:
    """`unix:/p` and `unix:///p` → `/p`. 107 bytes is what the system takes."""
    rest = text[len("unix:") :]
    path = rest[2:] if rest.startswith("//") else rest
    if not path.startswith("/") or "\0" in path:
        raise BadValue("needs an absolute socket path", 'such as "unix:///run/engine.sock"')
    if len(path.encode()) > 107:
        raise BadValue("has a socket path of more than 107 bytes", "the system takes no longer one")
    return path
