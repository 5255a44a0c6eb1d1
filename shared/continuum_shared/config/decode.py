"""A source → an instance of the root model, and one report with everything that is wrong.

Checks over several keys run even when other keys are wrong: each says what it reads, and it is
left out only when something it reads is itself in doubt. So one run names every problem.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from continuum_shared.config.kinds import SectionModel
from continuum_shared.config.model_walk import field_at, is_note, section_at
from continuum_shared.config.report import Path, Problem, Report, Severity, dotted, sorted_report
from continuum_shared.config.source import Source
from continuum_shared.config.wording import in_words

ModelT = TypeVar("ModelT", bound=SectionModel)
ANY = "*"
_MAX_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check has to say; the line is looked up from the path."""

    path: Path
    message: str
    hint: str = ""
    severity: Severity = Severity.ERROR


class View:
    """What a check may ask about the file besides the instance."""

    __slots__ = ("_doubts", "_source")

    def __init__(self, source: Source, doubts: set[Path]) -> None:
        self._source = source
        self._doubts = doubts

    def written(self, path: Path) -> bool:
        """True when the file has this key, so that warnings need not speak of defaults."""
        return path in self._source.lines

    def sure(self, *paths: Path) -> bool:
        """True when nothing at, above or below these paths ("*" = any item) is wrong."""
        return not any(_overlaps(path, doubt) for path in paths for doubt in self._doubts)


@dataclass(frozen=True, slots=True)
class Check(Generic[ModelT]):
    """A rule over several keys. It runs only when all that it `reads` is sure; a rule that goes
    through a list and can leave out single items reads nothing here and asks `View.sure`."""

    run: Callable[[ModelT, View], Iterator[Finding]]
    reads: tuple[Path, ...] = ()


def decode(
    model: type[ModelT], source: Source, checks: Sequence[Check[ModelT]] = ()
) -> tuple[ModelT | None, Report]:
    """Return (instance or None when there is any error, report). Never raises for bad content."""
    own = [(path, problem) for path, problem in source.problems if not is_note(model, path)]
    if source.data is None:
        return None, sorted_report(source.file, (problem for _, problem in own))
    spoiled = {path for path, _ in own}
    problems = [problem for _, problem in own]
    instance, findings = _build(model, source, spoiled)
    doubts = spoiled | {finding.path for finding in findings}
    view = View(source, doubts)
    if instance is not None:
        for check in checks:
            if view.sure(*check.reads):
                findings.extend(check.run(instance, view))
    problems.extend(_problem(finding, source) for finding in findings)
    report = sorted_report(source.file, problems)
    return (None if report.errors else instance), report


def _build(
    model: type[ModelT], source: Source, spoiled: set[Path]
) -> tuple[ModelT | None, list[Finding]]:
    """Validate; after errors mend the data and validate again, so that checks can still run."""
    data: Any = copy.deepcopy(source.data)
    findings: list[Finding] = []
    for path in spoiled:
        _mend(model, data, path)
    for _ in range(_MAX_ROUNDS):
        try:
            return model.model_validate(data, context=source.env), findings
        except ValidationError as error:
            details = error.errors(include_url=False)
        for detail in details:
            where = _in_file(tuple(detail["loc"]), source, detail["type"])
            path, (message, hint) = in_words(detail, model, where)
            if not any(_overlaps(path, doubt) for doubt in spoiled):
                findings.append(Finding(path=path, message=message, hint=hint))
            _mend(model, data, path)
    return None, findings


def _in_file(loc: Path, source: Source, kind: str) -> Path:
    """pydantic's location without the parts that name its own validators."""
    if kind == "missing":
        return loc
    for length in range(len(loc), 0, -1):
        if loc[:length] in source.lines:
            return loc[:length]
    return ()


def _mend(model: type[SectionModel], data: Any, path: Path) -> None:
    """Take a bad value out; a required one gets its model's stand-in. Changes `data`."""
    for length in range(len(path), 0, -1):
        parent, last = _container(data, path[: length - 1]), path[length - 1]
        if isinstance(parent, dict) and isinstance(last, str):
            owner, field = section_at(model, path[: length - 1]), field_at(model, path[:length])
            if owner is not None and last in owner.stand_ins:
                parent[last] = owner.stand_ins[last]
            elif field is None or not field.is_required():
                parent.pop(last, None)
            else:
                continue
            return
        if isinstance(parent, list) and isinstance(last, int) and last < len(parent):
            item = section_at(model, path[:length])
            parent[last] = dict(item.stand_ins) if item is not None else None
            if item is None:
                _mend(model, data, path[: length - 1])
            return


def _container(data: Any, path: Path) -> Any:
    for part in path:
        if isinstance(data, dict):
            data = data.get(str(part))
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data


def _overlaps(left: Path, right: Path) -> bool:
    """True when one path lies at or below the other; "*" stands for any part."""
    return all(a == b or ANY in {a, b} for a, b in zip(left, right, strict=False))


def _problem(finding: Finding, source: Source) -> Problem:
    return Problem(
        severity=finding.severity,
        path=dotted(finding.path),
        line=source.line_of(finding.path),
        message=finding.message,
        hint=finding.hint,
    )
