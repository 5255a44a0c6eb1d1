"""Process logs: forms of a line, bounds of the queue, precedence of the levels."""

import io
import json
import logging
import threading

import pytest

from continuum_shared.config.logging_section import LoggingConfig
from continuum_shared.logs import (
    MAX_RECORD_BYTES,
    LogFormat,
    LogLevel,
    LogQueue,
    LogSettings,
    fields,
    levels_from_env,
    setup_logging,
    start_logging,
    wait_until_written,
)
from continuum_shared.metrics import Metrics


class Blocked(io.BytesIO):
    """An output that does not take anything until it is let go."""

    def __init__(self):
        super().__init__()
        self.entered = threading.Event()
        self.gate = threading.Event()

    def write(self, data):
        self.entered.set()
        self.gate.wait(5)
        return super().write(data)


class Broken(io.BytesIO):
    def write(self, data):
        raise OSError("disk full")


def logger_to(queue):
    logger = logging.Logger("continuum_router.x", level=1)
    logger.addHandler(queue)
    return logger


def test_json_line():
    out = io.BytesIO()
    queue = LogQueue(LogSettings(), out)
    logger_to(queue).info("Source %s", "up", extra=fields(source="a", n=3, odd=object()))
    queue.stop()
    line = json.loads(out.getvalue())
    assert line["level"] == "INFO"
    assert line["target"] == "continuum_router.x"
    assert line["fields"] == {"message": "Source up", "source": "a", "n": 3, "odd": "<object>"}
    assert line["timestamp"].endswith("Z")


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (LogFormat.PRETTY, 'WARN  continuum_router.x: a\\nb k="c d"\n'),
        (LogFormat.COMPACT, 'W a\\nb k="c d"\n'),
    ],
)
def test_text_lines_stay_one_line(form, expected):
    out = io.BytesIO()
    queue = LogQueue(LogSettings(format=form), out)
    logger_to(queue).warning("a\nb", extra=fields(k="c d"))
    queue.stop()
    assert out.getvalue().decode().endswith(expected)
    assert out.getvalue().count(b"\n") == 1


def test_a_blocked_output_drops_and_counts_but_does_not_wait():
    out = Blocked()
    queue = LogQueue(LogSettings(queue_capacity=2), out)
    logger = logger_to(queue)
    logger.info("0")
    assert out.entered.wait(5)
    for n in range(5):
        logger.info("%d", n)
    assert queue.dropped["queue_full"] == 3
    metrics = Metrics()
    queue.register_metrics(metrics)
    text = metrics.exposition().decode()
    assert 'process_log_records_dropped_total{reason="queue_full"} 3.0' in text
    out.gate.set()
    queue.stop()
    assert out.getvalue().count(b"\n") == 3


def test_queue_bytes_bound():
    out = Blocked()
    queue = LogQueue(LogSettings(queue_capacity_bytes=65536), out)
    logger = logger_to(queue)
    logger.info("0")
    assert out.entered.wait(5)
    for _ in range(3):
        logger.info("x" * 30_000)
    assert queue.dropped["queue_bytes"] == 1
    out.gate.set()
    queue.stop()


def test_a_long_record_is_cut_at_a_character():
    out = io.BytesIO()
    queue = LogQueue(LogSettings(format=LogFormat.COMPACT), out)
    logger_to(queue).info("가" * 40_000)
    queue.stop()
    line = out.getvalue().rstrip(b"\n")
    assert len(line) <= MAX_RECORD_BYTES
    assert line.decode().endswith("가[process log truncated]")
    assert queue.truncated == 1


def test_a_failed_write_ends_logging_and_is_told():
    queue = LogQueue(LogSettings(), Broken())
    logger = logger_to(queue)
    logger.info("a")
    queue._thread.join(5)
    assert queue.writer_failed
    logger.info("b")
    assert queue.dropped["write_error"] == 2


def test_exception_text_is_not_written():
    out = io.BytesIO()
    queue = LogQueue(LogSettings(), out)
    try:
        raise ValueError("the key is sk-secret")
    except ValueError:
        logger_to(queue).exception("It failed")
    assert wait_until_written(queue, 5)
    queue.stop()
    assert b"sk-secret" not in out.getvalue()
    assert b"ValueError" in out.getvalue()


@pytest.mark.parametrize(
    ("env", "level", "targets", "complains"),
    [
        ({}, "info", {}, False),
        ({"CONTINUUM_LOG_LEVEL": "DEBUG"}, "debug", {}, False),
        ({"CONTINUUM_LOG_LEVEL": "loud"}, "info", {}, True),
        ({"RUST_LOG": ""}, "info", {}, False),
        ({"RUST_LOG": "warn", "CONTINUUM_LOG_LEVEL": "debug"}, "warn", {}, False),
        ({"RUST_LOG": "a::b=trace,error"}, "error", {"a.b": "trace"}, False),
        ({"RUST_LOG": "a=b=c,,"}, "info", {}, True),
    ],
)
def test_precedence_of_levels(env, level, targets, complains):
    found, by_target, complaint = levels_from_env(LogLevel.INFO, env)
    assert (found, by_target, complaint is not None) == (level, targets, complains)


def test_setup_takes_the_root_logger_and_gives_it_back():
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    out = io.BytesIO()
    queue = setup_logging(LogSettings(level=LogLevel.WARN), out)
    logging.getLogger("continuum_router.y").info("quiet")
    logging.getLogger("continuum_router.y").warning("loud")
    queue.stop()
    assert [json.loads(line)["fields"]["message"] for line in out.getvalue().splitlines()] == [
        "loud"
    ]
    assert (list(root.handlers), root.level) == before


@pytest.mark.parametrize(
    ("env", "levels", "complaints"),
    [
        ({}, ["WARN"], 0),
        ({"CONTINUUM_LOG_LEVEL": "info"}, ["INFO", "WARN"], 0),
        ({"CONTINUUM_LOG_LEVEL": "canary"}, ["WARN"], 1),
    ],
)
def test_a_section_and_the_environment(env, levels, complaints, capsysbinary):
    section = LoggingConfig(level=LogLevel.WARN, format=LogFormat.JSON)
    queue = start_logging(section, env)
    logging.getLogger("continuum_router.y").info("a")
    logging.getLogger("continuum_router.y").warning("b")
    queue.stop()
    out = capsysbinary.readouterr().out
    lines = [json.loads(line) for line in out.splitlines()]
    own = [line["level"] for line in lines if line["target"] == "continuum_router.y"]
    assert (own, len(lines) - len(own)) == (levels, complaints)
    assert b"canary" not in out
