"""What the parts of the daemon report: problems for `meshctl status`, checks for `meshctl doctor`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from meshd.api.schema import CheckRow, ProblemView
from meshd.codes import CheckName, ProblemCode, WarningCode

Severity = Literal["error", "warning", "info"]


def problem(
    code: ProblemCode | WarningCode,
    severity: Severity,
    text: str,
    cure: str,
    *,
    since: datetime | None = None,
    pool: str = "",
    machine: str = "",
    blocking: bool = False,
) -> ProblemView:
    """A problem.

    Args:
        code: which one it is.
        severity: `error` when somebody must act; `warning` when meshd goes on by itself.
        text: what is wrong, for people.
        cure: what to do about it.
        since: when it began, where that is known.
        pool: the pool that it is about; "" for none.
        machine: the machine that it is about; "" for none.
        blocking: the pool cannot reach its target until somebody acts.
    """
    return ProblemView(
        code=code.value, severity=severity, text=text, cure=cure, since=since, pool=pool, machine=machine,
        blocking=blocking,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Check:
    """One check of doctor.

    Attributes:
        name: which one.
        run: makes its row. Raises MeshdError when it fails; doctor turns that into a row and ends it at its deadline.
        about: which of several things of a kind it is about, e.g. a provider's name.
        reads: what it shows was read from Slurm or the tailnet: doctor has them read again first.
        failed: the code of the row when `run` raises.
        at_once: may have an answer that need not wait for that; None from it: it has none.
    """

    name: CheckName
    run: Callable[[], Awaitable[CheckRow]]
    about: str = ""
    reads: bool = False
    failed: ProblemCode = ProblemCode.CHECK_FAILED
    at_once: Callable[[], Awaitable[CheckRow | None]] | None = None

    @property
    def title(self) -> str:
        """The name of its row."""
        return f"{self.name} {self.about}".rstrip()


def ok(name: str, text: str, *, at: datetime | None = None) -> CheckRow:
    """All is well; `at` is when that was read."""
    return CheckRow(name=name, status="ok", text=text, at=at)


def warn(name: str, code: ProblemCode, text: str, cure: str) -> CheckRow:
    """It works, and somebody should look at it."""
    return CheckRow(name=name, status="warn", code=code.value, text=text, cure=cure)


def fail(name: str, code: ProblemCode, text: str, cure: str) -> CheckRow:
    """It does not work."""
    return CheckRow(name=name, status="fail", code=code.value, text=text, cure=cure)


class Reporter:
    """A part of the daemon that reports how it stands. A part without a say inherits silence."""

    def problems(self) -> Iterable[ProblemView]:
        """What is not as it should be, for `meshctl status`. Reads memory only."""
        return ()

    def checks(self) -> Iterable[Check]:
        """The checks of `meshctl doctor`. Their `run` may ask the outside world."""
        return ()


class Report(Reporter):
    """What several parts report, together."""

    def __init__(self, *parts: Reporter) -> None:
        self._parts = parts

    def problems(self) -> Iterable[ProblemView]:
        """The problems of all parts."""
        for part in self._parts:
            yield from part.problems()

    def checks(self) -> Iterable[Check]:
        """The checks of all parts, in the order in which doctor shows them."""
        for part in self._parts:
            yield from part.checks()
