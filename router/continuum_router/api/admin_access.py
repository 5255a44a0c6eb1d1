"""Who may use `/admin/*` (decisions P4). Pure: what the request carries in, a verdict out.

With a token: whoever has it. Without one: only a program on this host that is neither a proxy for
others nor a web page in the operator's browser. A proxy betrays itself by a Forwarded header or the
Host it was asked for; a page can neither choose Host nor send `application/json` without asking.
"""

import hmac
import ipaddress
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

_FORWARDED = ("forwarded", "via", "x-real-ip")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]{1,5})?", re.IGNORECASE)
_HERE = frozenset({"localhost", "127.0.0.1", "::1"})
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Denied(StrEnum):
    """Why not."""

    NO_TOKEN = "no_token"
    WRONG_TOKEN = "wrong_token"
    NOT_LOCAL = "not_local"
    FORWARDED = "forwarded"
    FOREIGN_HOST = "foreign_host"
    NOT_JSON = "not_json"


def admin_verdict(
    method: str, headers: Mapping[str, str], peer: str | None, tokens: Sequence[bytes]
) -> Denied | None:
    """None when the caller may. `headers` has lower-case names, `peer` is an address or None for
    a unix socket, whose file's permissions have let the caller in."""
    if tokens:
        return _with_token(headers.get("authorization"), tokens)
    if peer is not None and not _is_loopback(peer):
        return Denied.NOT_LOCAL
    if any(name in _FORWARDED or name.startswith("x-forwarded-") for name in headers):
        return Denied.FORWARDED
    host = _HOST.fullmatch(headers.get("host", ""))
    if host is None or host[1].strip("[]").lower() not in _HERE:
        return Denied.FOREIGN_HOST
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if method in _WRITES and kind != "application/json":
        return Denied.NOT_JSON
    return None


def _with_token(sent: str | None, tokens: Sequence[bytes]) -> Denied | None:
    scheme, _, token = (sent or "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        return Denied.NO_TOKEN
    given = token.strip().encode("utf-8", "surrogateescape")
    # Every token is compared, in a time that does not depend on which one fits.
    fits = [hmac.compare_digest(given, each) for each in tokens]
    return None if any(fits) else Denied.WRONG_TOKEN


def _is_loopback(peer: str) -> bool:
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
