"""One field of a JSON text found while it passes by, in pieces of any size.

Nothing is parsed into values and nothing is held back: the scanner follows strings and brackets,
knows the keys of the outer object (and of the objects under `inner` keys) and either replaces the
string value of one key or notes it. Every byte outside that value is given back as it came.
"""

import json
import re

MAX_KEPT = 512
"""Bytes of a key or a noted value that are kept; a longer one is none of ours."""

_FINE = re.compile(rb'["{}\[\],:]')
_COARSE = re.compile(rb'["{}\[\]]')
_INSIDE = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)

_OUTSIDE, _PASS, _KEY, _NOTE, _DROP = range(5)


class JsonScan:
    """Watches the string value of `key` in the outer object and in objects under `inner` keys.

    With a `replacement` (a whole JSON string, quotes included) each such value becomes it; without
    one, `found` is the first value. Escaped keys are understood. A text that is no JSON passes.
    """

    __slots__ = (
        "_depth",
        "_escaped",
        "_expect_key",
        "_inner",
        "_kept",
        "_key",
        "_keys",
        "_nested",
        "_replacement",
        "_root",
        "_string",
        "found",
    )

    def __init__(
        self,
        key: str,
        *,
        replacement: bytes | None = None,
        inner: frozenset[str] = frozenset(),
    ) -> None:
        self._key = key
        self._replacement = replacement
        self._inner = inner
        self.found: str | None = None
        self.reset()

    def reset(self) -> None:
        """Begin with a new text."""
        self._depth = 0
        self._root = self._nested = False
        self._expect_key = False
        self._keys: list[str | None] = [None, None, None]
        self._string = _OUTSIDE
        self._escaped = False
        self._kept = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Take the next piece, return what goes on in its place."""
        pieces: list[bytes] = []
        start = at = 0
        end = len(data)
        while at < end:
            if self._string == _OUTSIDE:
                fine = self._nested if self._depth == 2 else self._root and self._depth == 1
                match = (_FINE if fine else _COARSE).search(data, at)
                if match is None:
                    break
                at = match.end()
                if match[0] != b'"':
                    self._structure(match[0])
                    continue
                self._open(fine)
                if self._string == _DROP:
                    pieces += (data[start : at - 1], self._replacement or b"")
                    start = at
            else:
                dropping = self._string == _DROP
                at = self._inside(data, at)
                if dropping:
                    start = at
        if not pieces and start == 0:
            return data
        pieces.append(data[start:])
        return b"".join(pieces)

    def _structure(self, mark: bytes) -> None:
        if mark == b",":
            self._expect_key = True
        elif mark == b":":
            self._expect_key = False
        elif mark in b"{[":
            self._depth += 1
            if self._depth == 1:
                self._root = self._expect_key = mark == b"{"
            elif self._depth == 2:
                self._nested = mark == b"{" and self._root and self._keys[1] in self._inner
                self._expect_key = self._nested
        else:
            self._depth = max(0, self._depth - 1)
            self._expect_key = False
            if self._depth <= 1:
                self._nested = False
            if self._depth == 0:
                self._root = False

    def _open(self, fine: bool) -> None:
        """A string begins: which kind is it?"""
        if not fine:
            self._string = _PASS
        elif self._expect_key:
            self._string = _KEY
        elif self._keys[self._depth] != self._key:
            self._string = _PASS
        elif self._replacement is not None:
            self._string = _DROP
        else:
            self._string = _NOTE if self.found is None else _PASS
        self._kept.clear()

    def _inside(self, data: bytes, at: int) -> int:
        """Go on in a string, through its closing quote if that is here; return the offset."""
        start = at
        if self._escaped:
            self._escaped = False
            at += 1
        match = _INSIDE.match(data, at)
        at = match.end() if match is not None else at
        if self._string in (_KEY, _NOTE) and len(self._kept) <= MAX_KEPT:
            self._kept += data[start:at]
        if at == len(data):
            return at
        if data[at] == 0x5C:  # a backslash as the last byte of the piece
            self._escaped = True
            self._kept += b"\\"
            return at + 1
        if self._string == _KEY:
            self._keys[self._depth] = self._text()
        elif self._string == _NOTE:
            self.found = self._text()
        self._string = _OUTSIDE
        return at + 1

    def _text(self) -> str | None:
        if len(self._kept) > MAX_KEPT:
            return None
        try:
            found = json.loads(b'"' + bytes(self._kept) + b'"')
        except ValueError:
            return None
        return found if isinstance(found, str) else None


class EventScan:
    """The same over an event stream: the data of each event is a JSON text of its own."""

    __slots__ = ("_after_cr", "_column", "_is_data", "_scan")

    def __init__(self, scan: JsonScan) -> None:
        self._scan = scan
        self._after_cr = False
        self._column = 0
        self._is_data = True

    def feed(self, data: bytes) -> bytes:
        """Take the next piece, return what goes on in its place."""
        pieces: list[bytes] = []
        at = 0
        while at < len(data):
            mark = data[at]
            if mark in (0x0A, 0x0D):
                self._line_end(mark)
                pieces.append(data[at : at + 1])
                at += 1
                continue
            self._after_cr = False
            match = _LINE.match(data, at)
            end = match.end() if match is not None else len(data)
            if self._is_data and self._column < len(_DATA):
                take = min(len(_DATA) - self._column, end - at)
                text = data[at : at + take]
                self._is_data = text == _DATA[self._column : self._column + take]
                self._column += take
                pieces.append(text)
                at += take
            text = data[at:end]
            if text:
                pieces.append(self._scan.feed(text) if self._is_data else text)
            at = end
        return b"".join(pieces)

    def _line_end(self, mark: int) -> None:
        if self._after_cr and mark == 0x0A:
            self._after_cr = False
            return
        if self._column == 0:
            self._scan.reset()
        self._after_cr = mark == 0x0D
        self._column = 0
        self._is_data = True


_DATA = b"data:"
_LINE = re.compile(rb"[^\r\n]*")


class BodyRewrite:
    """Puts the client's own name for the model back into an answer (decisions H7)."""

    def __init__(self, name: str, *, events: bool) -> None:
        scan = JsonScan(
            "model", replacement=json.dumps(name).encode(), inner=frozenset({"response"})
        )
        self._scan: JsonScan | EventScan = EventScan(scan) if events else scan

    def feed(self, data: bytes) -> bytes:
        """Take the next piece, return what goes on in its place."""
        return self._scan.feed(data)


class ResponseIdTap:
    """Notes the id of an answer of `/v1/responses`, plain or streamed (a `StreamTap`)."""

    __slots__ = ("_feed", "_scan")

    def __init__(self) -> None:
        self._scan = JsonScan("id", inner=frozenset({"response"}))
        self._feed: JsonScan | EventScan | None = None

    @property
    def found(self) -> str | None:
        """The id, once it has passed."""
        return self._scan.found

    def feed(self, data: bytes) -> None:
        """Look at the next piece; nothing is kept."""
        if self._scan.found is not None:
            return
        if self._feed is None:
            text = data.lstrip()
            if not text:
                return
            self._feed = self._scan if text.startswith(b"{") else EventScan(self._scan)
        self._feed.feed(data)
