"""How the router shows a backend who it is: the key's header, the TLS context (decisions H12)."""

import base64
import ssl

from continuum_router.backends.kinds import KINDS
from continuum_router.backends.pool import Backend
from continuum_router.config.backends import TlsConfig


class TlsFileError(Exception):
    """A file of `backends[].tls` cannot be used. `key` names the configuration key."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"tls.{key}: {reason}")
        self.key = key
        self.reason = reason


def key_header(backend: Backend) -> tuple[str, str] | None:
    """Name and value of the header that carries `api_key`, or None without a key."""
    if backend.api_key is None:
        return None
    key, kind = backend.api_key.reveal(), KINDS[backend.type]
    scheme, _, name = backend.auth_scheme.partition(":")
    if scheme == "header":
        return name, key
    if scheme == "basic":
        return "Authorization", "Basic " + base64.b64encode(key.encode()).decode("ascii")
    return kind.auth_header, kind.auth_prefix + key


def own_headers(backend: Backend) -> list[tuple[str, str]]:
    """Every header that the configuration adds to requests; `headers` wins over the other keys."""
    pairs = list(backend.headers)
    names = {name.lower() for name, _ in pairs}
    more = [key_header(backend)]
    if backend.organization is not None:
        more.append(("OpenAI-Organization", backend.organization))
    pairs += [pair for pair in more if pair is not None and pair[0].lower() not in names]
    return pairs


def tls_context(settings: TlsConfig) -> ssl.SSLContext:
    """The client context for these settings, HTTP/1.1 only. Reads files: make it once.

    Without a `ca_file` the system's trust store counts. Raises TlsFileError.
    """
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as err:
        raise TlsFileError("ca_file", _reason(err)) from None
    context.set_alpn_protocols(["http/1.1"])
    if settings.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.client_cert is not None:
        try:
            # An encrypted key must not make the process ask for its password on a terminal.
            context.load_cert_chain(settings.client_cert, settings.client_key, password=lambda: "")
        except (OSError, ssl.SSLError, ValueError) as err:
            raise TlsFileError("client_cert", _reason(err)) from None
    return context


def _reason(err: Exception) -> str:
    if isinstance(err, OSError) and not isinstance(err, ssl.SSLError) and err.strerror:
        return err.strerror.lower()
    return "is not a usable PEM file"
