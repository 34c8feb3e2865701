"""One request for each of several names. A failure for one name does not stop the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

from meshd.api.schema import MachineAnswer, MachineAnswers, MachineFailure
from meshd.cli.client import HeadClient
from meshd.cli.errors import CliError, ExitCode, UnreachableError
from meshd.cli.render.table import Table
from meshd.cli.render.terminal import phase, show
from meshd.cli.session import Session, print_json, say

T = TypeVar("T")
Failures: TypeAlias = list[tuple[str, CliError]]
"""Names with their errors."""


async def ask_each(
    head: HeadClient, names: Sequence[str], ask: Callable[[HeadClient, str], Awaitable[T]]
) -> tuple[list[T], Failures]:
    """Ask for each name once, one after the other; returns the answers and the failures.

    Raises:
        UnreachableError: the daemon went away.
    """
    done: list[T] = []
    failed: Failures = []
    for name in dict.fromkeys(names):
        try:
            done.append(await ask(head, name))
        except UnreachableError:
            raise
        except CliError as error:
            failed.append((name, error))
    return done, failed


def report_failures(failed: Sequence[tuple[str, CliError]], count: int) -> None:
    """Print the failures and end, if there are any.

    Args:
        failed: names with their errors.
        count: of all names.

    Raises:
        CliError: PARTLY if some failed; if all failed, the first error's code.
    """
    for name, error in failed:
        say(f"{name}: {error.message}")
        if error.cure:
            say(f"  do: {error.cure}")
    if failed and len(failed) < count:
        raise CliError(f"{len(failed)} of {count} failed", code=ExitCode.PARTLY, kind="partly")
    if failed:
        raise CliError(f"all {len(failed)} failed", code=ExitCode(failed[0][1].exit_code), kind=failed[0][1].kind)


def change_nodes(
    session: Session, nodes: Sequence[str], ask: Callable[[HeadClient, str], Awaitable[MachineAnswer]], *, as_json: bool
) -> None:
    """Ask for each node, print the answers, and end with an error if some failed.

    Raises:
        CliError: the single node's error; PARTLY if some failed; the first error's code if all failed.
    """
    done, failed = session.ask(
        lambda head: ask_each(head, nodes, ask), if_interrupted="interrupted; some may be done: see `meshctl nodes`"
    )
    if not done and len(failed) == 1:
        raise failed[0][1]
    if as_json:
        failures = [MachineFailure(machine=node, error=error.view()) for node, error in failed]
        print_json(MachineAnswers(machines=done, failed=failures))
    elif done:
        show(_table(done))
    for answer in done:
        for warning in answer.warnings:
            say(f"warning: {answer.machine}: {warning}")
    report_failures(failed, len(done) + len(failed))


def _table(answers: Sequence[MachineAnswer]) -> Table:
    return Table(
        ("MACHINE", "SLOT", "PHASE", "JOBS", "WHAT"),
        [(a.machine, a.slot, phase(a.phase), ",".join(a.jobs) or "-", a.text) for a in answers],
    )
