"""What is wrong with a file: problems with their lines, sorted and printed as one report."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

Path = tuple[str | int, ...]
MAX_SHOWN = 200


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing to say about a file. `path` is dotted, such as `backends[0].url`, "" = the file."""

    severity: Severity
    path: str
    line: int
    message: str
    hint: str = ""

    def text(self, file: str) -> str:
        """`FILE:LINE: path: what is wrong; what would be right` (decisions P2, J13)."""
        mark = "warning: " if self.severity is Severity.WARNING else ""
        where = f"{self.path}: " if self.path else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{file}:{self.line}: {mark}{where}{self.message}{hint}"


@dataclass(frozen=True, slots=True)
class Report:
    """Every problem of one file, in the order of its lines."""

    file: str
    problems: tuple[Problem, ...] = ()

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(p for p in self.problems if p.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(p for p in self.problems if p.severity is Severity.WARNING)

    def lines(self) -> list[str]:
        return [problem.text(self.file) for problem in self.problems]

    def __str__(self) -> str:
        return "\n".join(self.lines())


class ConfigError(Exception):
    """A file cannot be used. `report` says everything that is wrong with it."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


def dotted(path: Path) -> str:
    """`("backends", 0, "url")` → `backends[0].url`; unusual keys are quoted and cut short."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        shown = part if len(part) <= 64 else part[:61] + "..."
        if not shown.isprintable() or not shown or any(ch in shown for ch in " .\"'[]:"):
            shown = '"' + shown.encode("unicode_escape").decode().replace('"', '\\"') + '"'
        text += f".{shown}" if text else shown
    return text


def sorted_report(file: str, problems: Iterable[Problem]) -> Report:
    """Problems by line, then path, each once; at most MAX_SHOWN and a line about the rest."""
    unique = sorted(dict.fromkeys(problems), key=lambda p: (p.line, p.path, p.message))
    shown, rest = unique[:MAX_SHOWN], unique[MAX_SHOWN:]
    if rest:
        worst = min(problem.severity for problem in rest)
        message = f"{len(rest)} more problems are not shown"
        shown.append(Problem(severity=worst, path="", line=rest[0].line, message=message))
    return Report(file, tuple(shown))
