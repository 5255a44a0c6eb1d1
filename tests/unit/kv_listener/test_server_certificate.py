"""Certificates are read, judged and renewed; a bad renewal leaves the one before in force."""

import asyncio
import logging
import shutil
import ssl
from datetime import UTC, datetime

import pytest

from continuum_kv_listener.server_certificate import (
    CertificateError,
    Renewal,
    ServerCertificate,
    expiry,
)
from continuum_kv_listener.serving_config import ListenerTlsConfig
from support.source_tree import ROOT

TLS = ROOT / "tests/fixtures/tls"
FIRST = datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
SECOND = datetime(2119, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()


class Place:
    """A directory with a certificate and its key, as a mounted secret would have them."""

    def __init__(self, path) -> None:
        self.cert, self.key = path / "tls.crt", path / "tls.key"
        self.put("listener")
        self.counted: list[Renewal] = []

    def put(self, cert: str, key: str | None = None) -> None:
        shutil.copy(TLS / f"{cert}.pem", self.cert)
        shutil.copy(TLS / f"{key or cert}-key.pem", self.key)

    def load(self, **more: object) -> ServerCertificate:
        settings = ListenerTlsConfig(cert=str(self.cert), key=str(self.key), **more)
        return ServerCertificate(settings, self.counted.append)


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


async def shown(certificate: ServerCertificate, *, cert: str | None = None) -> str:
    """Common name of what a client sees; raises ssl.SSLError when it is not let in."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=certificate.context)
    client = ssl.create_default_context(cafile=str(TLS / "ca.pem"))
    if cert is not None:
        client.load_cert_chain(TLS / cert)
    async with server:
        # An address, so that the client names no server: the newest must be shown none the less.
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        try:
            if await reader.read() != b"x":
                raise ConnectionResetError  # TLS 1.3 tells a client so late that it is not let in
            subject = writer.get_extra_info("peercert")["subject"]
        finally:
            writer.close()
    return subject[0][0][1]


@pytest.mark.parametrize(
    ("name", "end"),
    [("listener", FIRST), ("renewed", SECOND)],
    ids=["two digits of the year", "four digits"],
)
def test_expiry(name, end):
    assert expiry((TLS / f"{name}.pem").read_text()) == end


@pytest.mark.parametrize(
    "pem",
    [
        "",
        "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nMIIBIjCBygIBAT==\n-----END CERTIFICATE-----\n",
        "-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\n",
    ],
)
def test_expiry_of_no_certificate(pem):
    with pytest.raises(ValueError, match=r"certificate|time data"):
        expiry(pem)


async def test_a_renewed_certificate_is_in_force_for_the_next_handshake(place):
    certificate = place.load()
    assert certificate.expires == FIRST
    assert await shown(certificate) == "listener"
    assert not certificate.renew()
    place.put("renewed")
    assert certificate.renew()
    assert certificate.expires == SECOND
    assert await shown(certificate) == "renewed"
    assert place.counted == [Renewal.RENEWED]


@pytest.mark.parametrize("bad", ["half written", "other key", "gone"])
async def test_a_bad_renewal_is_told_once_and_changes_nothing(place, bad, caplog):
    certificate = place.load()
    if bad == "half written":
        place.cert.write_bytes(place.cert.read_bytes()[:200])
    elif bad == "other key":
        place.put("renewed", "listener")
    else:
        place.key.unlink()
    with caplog.at_level(logging.INFO):
        assert not certificate.renew()
        assert not certificate.renew()
    assert [record.message for record in caplog.records] == [
        "Certificate not renewed, the one before stays in force"
    ]
    assert place.counted == [Renewal.FAILED]
    assert await shown(certificate) == "listener"
    place.put("renewed")
    assert certificate.renew()
    assert await shown(certificate) == "renewed"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: p.cert.unlink(), "tls.cert: no such file or directory"),
        (lambda p: p.cert.write_text("nothing"), "tls.cert: is not a usable PEM file"),
        (lambda p: p.key.unlink(), "tls.key: no such file or directory"),
        (lambda p: p.key.write_text("nothing"), "tls.key: is not a usable PEM file"),
        (
            lambda p: shutil.copy(TLS / "renewed-key.pem", p.key),
            "tls.key: does not belong to the certificate",
        ),
    ],
)
def test_a_start_with_bad_files_says_which(place, spoil, message):
    spoil(place)
    with pytest.raises(CertificateError) as raised:
        place.load()
    assert str(raised.value) == message


def test_a_missing_client_ca(place):
    with pytest.raises(CertificateError, match=r"tls\.client_ca: no such file or directory"):
        place.load(client_ca="/nowhere")


async def test_mutual_tls(place):
    certificate = place.load(client_ca=str(TLS / "ca.pem"))
    assert await shown(certificate, cert="reader.pem") == "listener"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await shown(certificate)
    place.put("renewed")
    assert certificate.renew()
    assert await shown(certificate, cert="reader.pem") == "renewed"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await shown(certificate)
