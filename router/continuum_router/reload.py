"""A new configuration into a running router: build everything, swap once, dismiss the old (H4).

Whatever is wrong with the candidate is found before the swap and changes nothing. What comes after
the swap cannot fail in a way that matters: tasks are supervised and try again by themselves.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import StrEnum

from continuum_router.assemble import (
    State,
    adopt_health,
    adopt_state,
    build_snapshot,
    check_tls_files,
)
from continuum_router.backends.credentials import TlsFileError
from continuum_router.config.reload import Change, compare, keep_running
from continuum_router.config.root import Config
from continuum_router.reload_report import ReloadReport, Result
from continuum_router.runtime import ReloadRefused, Runtime
from continuum_shared.config.kinds import Reload
from continuum_shared.config.report import ConfigError, Report, dotted
from continuum_shared.logs import fields

log = logging.getLogger("continuum_router.reload")

Read = Callable[[], tuple[Config, Report]]
"""Reads the configuration anew. Raises ConfigError."""


class Trigger(StrEnum):
    """What asked for a reload."""

    SIGNAL = "signal"
    FILE = "file"
    ADMIN = "admin"


class Reloader:
    """Puts new configurations into force, one at a time, in the order in which they were asked for.

    `read` gives the candidate; None when there is no file to read again.
    """

    def __init__(self, runtime: Runtime, state: State, read: Read | None) -> None:
        self._runtime = runtime
        self._state = state
        self._read = read
        self._turn = asyncio.Lock()

    async def reload(self, trigger: Trigger) -> ReloadReport:
        """Read and apply. Returns once the new configuration is live, or why it is not (J9)."""
        async with self._turn:
            report = await self._candidate()
            self._state.reload_metrics.ended(report.result)
            _tell(trigger, report)
            return report

    async def _candidate(self) -> ReloadReport:
        if self._read is None:
            return _invalid("the router was started without a file; there is nothing to reload")
        try:
            config, report = self._read()
        except ConfigError as bad:
            return ReloadReport(result=Result.INVALID, problems=tuple(bad.report.lines()))
        return await self.apply(config, tuple(report.lines()))

    async def apply(self, wanted: Config, warnings: tuple[str, ...] = ()) -> ReloadReport:
        """Put `wanted` into force, as far as a running process can. Call it in your turn only."""
        runtime, state = self._runtime, self._state
        changes = compare(runtime.current.config, wanted)
        if frozen := _paths(changes, Reload.REFUSED):
            return ReloadReport(result=Result.REFUSED, refused=frozen, warnings=warnings)
        config = keep_running(runtime.current.config, wanted)
        snapshot = build_snapshot(config, state, generation=runtime.current.generation + 1)
        try:
            check_tls_files(snapshot)
            runtime.swap(snapshot)
        except TlsFileError as bad:
            return _invalid(str(bad), warnings)
        except ReloadRefused as refused:
            return ReloadReport(result=Result.REFUSED, refused=refused.keys, warnings=warnings)
        adopt_state(runtime, state)
        await adopt_health(runtime, state)
        state.health.start()
        await state.consumers.adopt(config)
        return ReloadReport(
            result=Result.APPLIED,
            applied=_paths(changes, Reload.HOT),
            requires_restart=_paths(changes, Reload.RESTART),
            warnings=warnings,
        )


def _paths(changes: tuple[Change, ...], kind: Reload) -> tuple[str, ...]:
    return tuple(dotted(change.path) for change in changes if change.reload is kind)


def _invalid(problem: str, warnings: tuple[str, ...] = ()) -> ReloadReport:
    return ReloadReport(result=Result.INVALID, problems=(problem,), warnings=warnings)


def _tell(trigger: Trigger, report: ReloadReport) -> None:
    """One line for each reload, and one for each thing that is wrong."""
    good = report.result is Result.APPLIED
    log.log(
        logging.INFO if good else logging.ERROR,
        "Configuration reloaded" if good else "Reload failed, the configuration in force stays",
        extra=fields(
            trigger=trigger,
            result=report.result,
            applied=list(report.applied),
            requires_restart=list(report.requires_restart),
            refused=list(report.refused),
        ),
    )
    for line in (*report.problems, *report.warnings):
        log.log(
            logging.WARNING if good else logging.ERROR,
            "Configuration problem",
            extra=fields(problem=line),
        )
