import pytest

from continuum_shared.config.report import (
    MAX_SHOWN,
    ConfigError,
    Problem,
    Report,
    Severity,
    dotted,
    sorted_report,
)


def _problem(line, path="a", severity=Severity.ERROR, message="is wrong", hint=""):
    return Problem(severity=severity, path=path, line=line, message=message, hint=hint)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("a",), "a"),
        (("backends", 0, "url"), "backends[0].url"),
        ((0, "a"), "[0].a"),
        (("headers", "X-Key"), "headers.X-Key"),
        (("a", "b c"), 'a."b c"'),
        (("a.b",), '"a.b"'),
        (("",), '""'),
        (("a\nb",), '"a\\nb"'),
        (("k" * 80,), '"' + "k" * 61 + '..."'),
    ],
)
def test_paths_are_dotted(path, text):
    assert dotted(path) == text


def test_the_form_of_a_line():
    assert _problem(3).text("f.yaml") == "f.yaml:3: a: is wrong"
    assert _problem(3, hint="be right").text("f.yaml") == "f.yaml:3: a: is wrong; be right"
    assert _problem(1, path="").text("f.yaml") == "f.yaml:1: is wrong"
    warning = _problem(3, severity=Severity.WARNING)
    assert warning.text("f.yaml") == "f.yaml:3: warning: a: is wrong"


def test_problems_come_by_line_and_once():
    problems = [_problem(5), _problem(2, "b"), _problem(2, "a"), _problem(5)]
    report = sorted_report("f", problems)
    assert report.lines() == ["f:2: a: is wrong", "f:2: b: is wrong", "f:5: a: is wrong"]
    assert str(report) == "\n".join(report.lines())


def test_errors_and_warnings_are_told_apart():
    report = Report("f", (_problem(1), _problem(2, severity=Severity.WARNING)))
    assert [p.line for p in report.errors] == [1]
    assert [p.line for p in report.warnings] == [2]


def test_a_very_long_report_is_cut_but_stays_an_error():
    warnings = [_problem(n, severity=Severity.WARNING) for n in range(MAX_SHOWN)]
    errors = [_problem(1000 + n) for n in range(3)]
    report = sorted_report("f", [*errors, *warnings])
    assert len(report.problems) == MAX_SHOWN + 1
    assert report.lines()[-1] == "f:1000: 3 more problems are not shown"
    assert len(report.errors) == 1


def test_the_error_carries_the_report():
    report = Report("f", (_problem(1),))
    error = ConfigError(report)
    assert error.report is report
    assert str(error) == "f:1: a: is wrong"
