"""What the file says about who may read the HTTP side, and how: `tls`, `auth_token_env`.

Decisions J3; docs/decisions/0037. A token is never in the file: the file names the environment
variable that has it, or several while a token is being exchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from continuum_shared.config.addresses import is_loopback
from continuum_shared.config.bad_value import BadValue
from continuum_shared.config.decode import Check, Finding, View
from continuum_shared.config.kinds import Reload, SectionModel, Text
from continuum_shared.config.report import Severity

if TYPE_CHECKING:
    from continuum_kv_listener.config import ListenerConfig

SHORT_TOKEN = 16
"""Characters below which a token can be guessed in reasonable time."""
MAX_TOKEN = 4096


class ListenerTlsConfig(SectionModel):
    """Certificate of the HTTP side; the files are read again when they change."""

    reload: ClassVar[Reload] = Reload.RESTART
    stand_ins: ClassVar[Mapping[str, object]] = {"cert": "-"}

    cert: Text = Field(description="PEM file: the certificate, then those that lead to its root.")
    key: Text | None = Field(None, description="PEM file with the key; unset = it is in cert.")
    client_ca: Text | None = Field(
        None,
        description="PEM file of roots; with it only clients with a certificate from one of them "
        "are served (mutual TLS), probes of /health included.",
    )


def _names(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise BadValue("is listed twice", "remove one", at=(index,))
    return names


EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
TokenNames = Annotated[
    tuple[EnvName, ...], BeforeValidator(_names), AfterValidator(_once), Field(max_length=8)
]


def tokens(config: ListenerConfig, env: Mapping[str, str]) -> tuple[str, ...]:
    """The tokens that the environment has under the configured names."""
    return tuple(env[name] for name in config.auth_token_env if env.get(name))


def token_digests(texts: tuple[str, ...]) -> tuple[bytes, ...]:
    """SHA-256 of each, so that the tokens themselves need not be kept."""
    return tuple(hashlib.sha256(text.encode()).digest() for text in texts)


def serving_checks(env: Mapping[str, str]) -> tuple[Check[ListenerConfig], ...]:
    """The rules that need the environment or join the keys of the HTTP side."""

    def tokens_are_there(config: ListenerConfig, _view: View) -> Iterator[Finding]:
        several = len(config.auth_token_env) > 1
        for index, name in enumerate(config.auth_token_env):
            path = ("auth_token_env", index) if several else ("auth_token_env",)
            text = env.get(name, "")
            if not text:
                yield Finding(
                    path=path,
                    message=f"the environment variable {name} is not set or empty",
                    hint="export it before the start, or remove auth_token_env",
                )
            elif not (text.isascii() and text.isprintable() and " " not in text):
                yield Finding(
                    path=path,
                    message=f"the token in {name} cannot be sent in a header",
                    hint="printable ASCII without blanks and line ends",
                )
            elif len(text) > MAX_TOKEN:
                yield Finding(
                    path=path,
                    message=f"the token in {name} is longer than {MAX_TOKEN} characters",
                    hint="such as the output of: openssl rand -hex 32",
                )
            elif len(text) < SHORT_TOKEN:
                yield Finding(
                    path=path,
                    message=f"the token in {name} is short enough to be guessed",
                    hint="such as the output of: openssl rand -hex 32",
                    severity=Severity.WARNING,
                )

    return (
        Check(tokens_are_there, (("auth_token_env",),)),
        Check(_token_in_the_clear, (("auth_token_env",), ("tls",), ("listen",))),
    )


def _token_in_the_clear(config: ListenerConfig, _view: View) -> Iterator[Finding]:
    listen = config.listen
    near = bool(listen.socket_path) or is_loopback(listen.host)
    if config.auth_token_env and config.tls is None and not near:
        yield Finding(
            path=("auth_token_env",),
            message="without tls the token travels in the clear",
            hint="set tls, or listen on 127.0.0.1 behind something that has it",
            severity=Severity.WARNING,
        )
