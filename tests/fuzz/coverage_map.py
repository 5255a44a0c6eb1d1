"""Which code an input reached. Lines on Python 3.12 and later, steps between lines before."""

import os
import sys
import types
from collections.abc import Callable
from typing import Any


class CoverageMap:
    """Collects what is reached in modules whose names begin with one of `watched`.

    `fresh` tells, after a call of `traced`, how many places were reached for the first time.
    """

    def __init__(self, watched: tuple[str, ...]) -> None:
        self._parts = tuple(os.sep + name.replace(".", os.sep) for name in watched)
        self._files: dict[str, bool] = {}
        self.places: set[object] = set()
        self.fresh = 0

    def traced(self, run: Callable[[bytes], None], data: bytes) -> None:
        """Run once, collecting. Exceptions pass."""
        before = len(self.places)
        try:
            self._collect(run, data)
        finally:
            self.fresh = len(self.places) - before

    def watches(self, file: str) -> bool:
        known = self._files.get(file)
        if known is None:
            known = self._files[file] = any(part in file for part in self._parts)
        return known

    if sys.version_info >= (3, 12):

        def _collect(self, run: Callable[[bytes], None], data: bytes) -> None:
            monitoring = sys.monitoring
            tool = monitoring.COVERAGE_ID
            monitoring.use_tool_id(tool, "fuzz")
            monitoring.register_callback(tool, monitoring.events.LINE, self._line)
            monitoring.set_events(tool, monitoring.events.LINE)
            try:
                run(data)
            finally:
                monitoring.set_events(tool, 0)
                monitoring.free_tool_id(tool)

        def _line(self, code: types.CodeType, line: int) -> object:
            if self.watches(code.co_filename):
                self.places.add((code.co_filename, line))
            return sys.monitoring.DISABLE

    else:

        def _collect(self, run: Callable[[bytes], None], data: bytes) -> None:
            before = sys.gettrace()
            sys.settrace(self._call)
            try:
                run(data)
            finally:
                sys.settrace(before)

        def _call(self, frame: types.FrameType, event: str, arg: object) -> Any:
            code = frame.f_code
            if not self.watches(code.co_filename):
                return None
            add = self.places.add
            last = 0

            def step(frame: types.FrameType, event: str, arg: object) -> Any:
                nonlocal last
                line = frame.f_lineno
                add((code, last, line))
                last = line
                return step

            return step
