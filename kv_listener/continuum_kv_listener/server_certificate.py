"""The certificate of the HTTP side: read at the start, and again when its files change.

The listening socket keeps one context for ever; each handshake is moved to the newest good one. So
a renewed certificate is in force for the next connection, streams that are open stay open, and a
file that is half written, or a key that does not fit, leaves the certificate before it in force.
"""

import asyncio
import binascii
import hashlib
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from continuum_kv_listener.serving_config import ListenerTlsConfig
from continuum_shared.logs import fields

log = logging.getLogger("continuum_kv_listener.server_certificate")

LOOK_SECONDS = 30.0
"""How often the files are looked at; by content, because a mounted secret swaps a link (H4)."""


class CertificateError(Exception):
    """A file of ``tls`` cannot be used; the text is for the operator and names the key."""


class Renewal(StrEnum):
    """How a change of the files ended; the value is a metric label."""

    RENEWED = "renewed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class _Loaded:
    context: ssl.SSLContext
    digest: bytes
    expires: float


class ServerCertificate:
    """What the TLS side of the server shows. ``counted`` is called for each change of the files.

    Raises CertificateError when the files cannot be used.
    """

    def __init__(
        self, settings: ListenerTlsConfig, counted: Callable[[Renewal], None] = lambda _: None
    ) -> None:
        self._settings = settings
        self._counted = counted
        self._loaded = _load(settings, _digest(settings))
        self._failed = b""
        self.context = _load(settings, b"").context
        self.context.sni_callback = self._newest

    @property
    def expires(self) -> float:
        """End of the certificate's validity, Unix seconds."""
        return self._loaded.expires

    def renew(self) -> bool:
        """Read the files if their content changed. True when another certificate is in force.

        Each bad content is counted and told once.
        """
        digest = _digest(self._settings)
        if digest in (self._loaded.digest, self._failed):
            return False
        try:
            loaded = _load(self._settings, digest)
        except CertificateError as error:
            self._failed = digest
            self._counted(Renewal.FAILED)
            log.warning(
                "Certificate not renewed, the one before stays in force",
                extra=fields(reason=str(error)),
            )
            return False
        if _digest(self._settings) != digest:
            return False  # written to while it was read; the next look decides
        self._loaded, self._failed = loaded, b""
        self._counted(Renewal.RENEWED)
        until = datetime.fromtimestamp(loaded.expires, UTC).isoformat()
        log.info("Certificate renewed", extra=fields(expires=until))
        return True

    async def watch(self) -> None:
        """Look at the files for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.renew()

    def _newest(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _: ssl.SSLContext
    ) -> None:
        connection.context = self._loaded.context


def _digest(settings: ListenerTlsConfig) -> bytes:
    """Stands for the content of all files; a file that cannot be read has content too."""
    sums = hashlib.sha256()
    for path in (settings.cert, settings.key, settings.client_ca):
        try:
            content = Path(path).read_bytes() if path is not None else b""
        except OSError as error:
            content = f"errno {error.errno}".encode()
        sums.update(hashlib.sha256(content).digest())
    return sums.digest()


def _load(settings: ListenerTlsConfig, digest: bytes) -> _Loaded:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        expires = expiry(Path(settings.cert).read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise CertificateError(f"tls.cert: {_reason(error)}") from None
    try:
        # An encrypted key must not make the process ask for its password on a terminal.
        context.load_cert_chain(settings.cert, settings.key, password=lambda: "")
    except (OSError, ssl.SSLError, ValueError) as error:
        raise CertificateError(f"tls.key: {_reason(error)}") from None
    if settings.client_ca is not None:
        try:
            context.load_verify_locations(settings.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise CertificateError(f"tls.client_ca: {_reason(error)}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return _Loaded(context, digest, expires)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return "does not belong to the certificate"
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.strerror:
        return error.strerror.lower()
    return "is not a usable PEM file"


def expiry(pem: str) -> float:
    """End of validity of the first certificate in a PEM text, Unix seconds.

    RFC 5280: Certificate ⊃ TBSCertificate ⊃ [version], serial, algorithm, issuer, validity ⊃
    notBefore, notAfter. Raises ValueError for anything else.
    """
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    start, stop = pem.find(begin), pem.find(end)
    if start < 0 or stop < start:
        raise ValueError("no certificate in the file")
    try:
        der = binascii.a2b_base64(pem[start + len(begin) : stop])
    except binascii.Error:
        raise ValueError("no base64 in the certificate") from None
    _, tbs, _ = _element(der, 0)
    _, at, _ = _element(der, tbs)
    tag, _, after = _element(der, at)
    if tag == 0xA0:  # the version is optional
        at = after
    for _ in range(3):
        _, _, at = _element(der, at)
    _, validity, _ = _element(der, at)
    _, _, not_after = _element(der, validity)
    tag, content, after = _element(der, not_after)
    text = der[content:after].decode("ascii")
    # A UTCTime has two digits of the year; strptime splits them as the RFC does but for 50 to 68.
    form = "%y%m%d%H%M%SZ" if tag == 0x17 else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """(tag, where the content begins, where the element ends) of the DER element at ``at``."""
    if at + 2 > len(der):
        raise ValueError("the certificate is cut off")
    tag, length, at = der[at], der[at + 1], at + 2
    if length >= 0x80:
        size = length & 0x7F
        length = int.from_bytes(der[at : at + size], "big")
        at += size
    if at + length > len(der):
        raise ValueError("the certificate is cut off")
    return tag, at, at + length
