"""The plain fields at the beginning of a multipart form, found without reading the whole of it.

Audio and image requests carry their model as one field beside a file that may be large. The scanner
is given the first bytes of the body as they come and says where the model's value stands, so that
the request can be routed, and the value exchanged, while the file is still on its way (RFC 7578).
"""

import re
from dataclasses import dataclass, field

MAX_FIELD = 1024
"""Bytes of a field's value that is read."""

MAX_PART_HEAD = 8 * 1024

_BOUNDARY = re.compile(
    r"multipart/form-data\b.*?;\s*boundary=(?:\"([^\"]{1,70})\"|([^\s;,\"]{1,70})(?=[\s;]|$))",
    re.IGNORECASE | re.DOTALL,
)
_NAME = re.compile(rb";[ \t]*name=(?:\"([^\"]*)\"|([^;\s]+))", re.IGNORECASE)
_FILE = re.compile(rb";[ \t]*filename\*?=", re.IGNORECASE)


class FormDamaged(Exception):
    """The body is no multipart form of its own boundary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """A plain field: its value and where that stands in the body."""

    value: bytes
    start: int
    end: int


def boundary_of(content_type: str) -> bytes | None:
    """The boundary of a multipart/form-data Content-Type; None for every other type."""
    match = _BOUNDARY.match(content_type.strip())
    return (match[1] or match[2]).encode("latin-1", "replace") if match else None


@dataclass(slots=True)
class FormScan:
    """Reads the fields `wanted` from the front of a form.

    `fields` grows as they are found, the first of a name counts; `ended` says that the closing
    boundary was seen.
    """

    boundary: bytes
    wanted: frozenset[str] = frozenset({"model", "stream"})
    fields: dict[str, FormField] = field(default_factory=dict)
    ended: bool = False
    _at: int = 0
    _search: int = 0
    _in_body: bool = False
    _started: bool = False
    _head: bytes = b""

    def feed(self, seen: bytes | bytearray) -> None:
        """Look on in `seen`: everything of the body so far. Raises FormDamaged."""
        while not self.ended:
            moved = self._part(seen) if self._in_body else self._boundary_line(seen)
            if not moved:
                return

    def _boundary_line(self, seen: bytes | bytearray) -> bool:
        """At a delimiter: read it and the head of the part behind it."""
        mark = b"--" + self.boundary
        if not self._started:
            if len(seen) < len(mark):
                return self._wait(mark.startswith(bytes(seen)))
            if not seen.startswith(mark):
                raise FormDamaged
            self._started = True
            self._at = len(mark)
        if seen[self._at : self._at + 2] == b"--":
            self.ended = True
            return False
        # The head is searched from the line end of the delimiter: a part may have no headers.
        end = seen.find(b"\r\n\r\n", self._at, self._at + MAX_PART_HEAD)
        if end < 0:
            return self._wait(len(seen) - self._at < MAX_PART_HEAD)
        self._head = bytes(seen[self._at : end])
        self._at = self._search = end + 4
        self._in_body = True
        return True

    def _part(self, seen: bytes | bytearray) -> bool:
        """In a part's body: look for the delimiter that ends it."""
        mark = b"\r\n--" + self.boundary
        # The body may be empty: then its delimiter begins with the head's last line end.
        end = seen.find(mark, max(self._at - 2, self._search))
        if end < 0:
            self._search = max(self._search, len(seen) - len(mark) + 1)
            return False
        self._note(seen, max(end, self._at))
        self._at = end + len(mark)
        self._in_body = False
        return True

    def _note(self, seen: bytes | bytearray, end: int) -> None:
        name = _field_name(self._head)
        if name in self.wanted and name not in self.fields and end - self._at <= MAX_FIELD:
            self.fields[name] = FormField(
                value=bytes(seen[self._at : end]), start=self._at, end=end
            )

    def _wait(self, plausible: bool) -> bool:
        if not plausible:
            raise FormDamaged
        return False


def _field_name(head: bytes) -> str:
    """The name of a plain field from its part's head; "" for files and what is odd."""
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.strip().lower() == b"content-disposition":
            match = _NAME.search(value)
            if match is None or _FILE.search(value):
                return ""
            return (match[1] if match[1] is not None else match[2]).decode("latin-1")
    return ""
