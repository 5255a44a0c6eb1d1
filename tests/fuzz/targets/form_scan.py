"""The scanner of multipart forms: the same fields over any split, each where it says."""

from continuum_router.providers.form_scan import (
    MAX_FIELD,
    FormDamaged,
    FormField,
    FormScan,
    boundary_of,
)
from fuzz.target import Target, plain, splits


def _scanned(pieces: list[bytes]) -> tuple[dict[str, FormField], bool, bool]:
    scan = FormScan(boundary=b"b")
    seen = bytearray()
    try:
        for piece in pieces:
            seen += piece
            scan.feed(seen)
    except FormDamaged:
        return scan.fields, scan.ended, True
    return scan.fields, scan.ended, False


def run(data: bytes) -> None:
    boundary_of(data.decode("latin-1"))
    whole, *others = map(_scanned, splits(data))
    for other in others:
        assert other == whole
    for field in whole[0].values():
        assert data[field.start : field.end] == field.value
        assert len(field.value) <= MAX_FIELD


_PART = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'

TARGET = Target(
    name="form_scan",
    opened=plain(run),
    seeds=(
        _PART + b"--b--\r\n",
        b'--b\r\nContent-Disposition: form-data; name=file; filename="a"\r\n\r\nxyz\r\n' + _PART,
        b"--b\r\n\r\n\r\n--b\r\ncontent-disposition:form-data;name=stream\r\n\r\ntrue\r\n--b--",
        b'multipart/form-data; charset=x; boundary="b c"',
    ),
    tokens=(b"--b", b"\r\n--b", b"\r\n\r\n", b"--", _PART, b"; name=", b"; filename=", b"\r\n"),
    watched=("continuum_router.providers.form_scan",),
    smoke=2500,
    max_size=4096,
)
