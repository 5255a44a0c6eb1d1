"""Fields at the front of a form, whatever the size of the pieces it comes in."""

import pytest

from continuum_router.providers.form_scan import FormDamaged, FormScan, boundary_of

FILE = b'Content-Disposition: form-data; name="file"; filename="model"\r\nContent-Type: a/b'


def _form(*parts: tuple[bytes, bytes], end: bool = True) -> bytes:
    body = b"".join(b"--B\r\n" + head + b"\r\n\r\n" + value + b"\r\n" for head, value in parts)
    return body + (b"--B--\r\n" if end else b"")


def _field(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    return b'Content-Disposition: form-data; name="' + name + b'"', value


def _scan(data: bytes, step: int) -> FormScan:
    scan = FormScan(boundary=b"B")
    for end in range(step, len(data) + step, step):
        scan.feed(data[:end])
    return scan


FORMS: dict[str, tuple[bytes, bytes | None, bool]] = {
    "model first": (_form(_field(b"model", b"whisper"), (FILE, b"x" * 99)), b"whisper", True),
    "file first": (_form((FILE, b"\r\n--Bx\r\n--"), _field(b"model", b"w")), b"w", True),
    "the first of two": (_form(_field(b"model", b"a"), _field(b"model", b"b")), b"a", True),
    "empty": (_form(_field(b"model", b"")), b"", True),
    "no model": (_form(_field(b"other", b"x")), None, True),
    "a file of that name": (_form((FILE.replace(b'"file"', b'"model"'), b"x")), None, True),
    "not complete": (_form(_field(b"model", b"whisper"), end=False)[:-4], None, False),
    "too long": (_form(_field(b"model", b"x" * 2000)), None, True),
    "bare name": (_form((b"content-disposition: form-data;name=model", b"m")), b"m", True),
    "no headers": (b"--B\r\n\r\nx\r\n" + _form(_field(b"model", b"m")), b"m", True),
    "other headers": (
        _form((b'Content-Type: text/plain\r\nContent-Disposition: form-data; name="model"', b"m")),
        b"m",
        True,
    ),
}


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize("name", FORMS)
def test_the_model_and_where_it_stands(name: str, step: int) -> None:
    data, model, ended = FORMS[name]
    scan = _scan(data, step)
    found = scan.fields.get("model")
    assert (found and found.value) == model
    assert scan.ended is ended
    if found is not None:
        assert data[found.start : found.end] == model


@pytest.mark.parametrize("step", [1, 10_000])
@pytest.mark.parametrize(
    "data",
    [b"{}", b"\r\n--B\r\n", b"--C\r\n", b"--B\r\nA: " + b"x" * 9000 + b"\r\n\r\n"],
    ids=["json", "preamble", "other boundary", "endless head"],
)
def test_what_is_no_form(data: bytes, step: int) -> None:
    with pytest.raises(FormDamaged):
        _scan(data, step)


@pytest.mark.parametrize(
    ("text", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data; charset=utf-8; boundary="a b;c"; x=y', b"a b;c"),
        ("multipart/form-data;boundary=----x", b"----x"),
        ("multipart/form-data", None),
        ("multipart/form-data; boundary=" + "x" * 71, None),
        ("multipart/mixed; boundary=x", None),
        ("application/json", None),
        ("", None),
    ],
)
def test_boundaries(text: str, boundary: bytes | None) -> None:
    assert boundary_of(text) == boundary
