"""Rules over the keys of one event source: TLS and the listener's token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from continuum_shared.config.addresses import is_loopback
from continuum_shared.config.decode import Check, Finding, View
from continuum_shared.config.report import Path, Severity

if TYPE_CHECKING:
    from continuum_router.config.root import Config


def _sources_are_reached_safely(config: Config, view: View) -> Iterator[Finding]:
    for index, source in enumerate(config.kv_cache_index.event_sources):
        base: Path = ("kv_cache_index", "event_sources", index)
        if not view.sure((*base, "endpoint"), (*base, "tls"), (*base, "auth_token")):
            continue
        secure, tls = source.endpoint.tls, source.tls
        if tls.client_key is not None and tls.client_cert is None:
            yield Finding(
                path=(*base, "tls", "client_key"),
                message="has no client_cert to belong to",
                hint="name the certificate in client_cert",
            )
        if tls.insecure_skip_verify:
            yield Finding(
                path=(*base, "tls", "insecure_skip_verify"),
                message="anybody can pose as this listener and read the token",
                hint="name its authority in ca_file instead",
                severity=Severity.WARNING,
            )
        if tls != type(tls)() and not secure:
            yield Finding(
                path=(*base, "tls"),
                message="has no effect: the endpoint is neither https nor wss",
                severity=Severity.WARNING,
            )
        if source.auth_token is not None and not secure and not is_loopback(source.endpoint.host):
            yield Finding(
                path=(*base, "auth_token"),
                message="travels in the clear: the endpoint is neither https nor wss",
                hint="give the listener a certificate (its tls section) and write https:// or wss://",
                severity=Severity.WARNING,
            )


SOURCE_CHECKS: tuple[Check[Config], ...] = (Check(_sources_are_reached_safely),)
