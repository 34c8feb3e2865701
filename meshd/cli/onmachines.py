"""Requests about several machines, one after the other: what failed for one does not stop the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from meshd.api.endpoints import A, Endpoint
from meshd.api.schema import MachineAnswer, MachineAnswers, MachineFailure, WaiveRequest
from meshd.cli import render
from meshd.cli.client import Head
from meshd.cli.exits import CliError, Exit, UnreachableError
from meshd.cli.session import Session, print_json, say


@dataclass(frozen=True, slots=True)
class _Results:
    done: list[MachineAnswer]
    failed: list[tuple[str, CliError]]


def each(
    session: Session,
    machines: Sequence[str],
    ask: Callable[[Head, str], Awaitable[MachineAnswer]],
    *,
    as_json: bool,
) -> None:
    """Ask for each machine, print the answers, and end with 6 when only some went well.

    Raises:
        CliError: all failed (the first error), some failed (partly done), or the daemon went away.
    """
    results = session.ask(
        lambda head: _ask_all(head, machines, ask),
        if_interrupted="interrupted; a part may be done: see `meshctl nodes`",
    )
    done, failed = results.done, results.failed
    if not done and len(failed) == 1:
        raise failed[0][1]
    _print(results, as_json=as_json)
    tell_failed(failed, len(done) + len(failed))


def tell_failed(failed: Sequence[tuple[str, CliError]], count: int) -> None:
    """Say what failed for which of `count` subjects, and end.

    Raises:
        CliError: partly done, or, when all failed, with the first one's code.
    """
    for name, error in failed:
        say(f"{name}: {error.message}")
        if error.cure:
            say(f"  do: {error.cure}")
    if failed and len(failed) < count:
        raise CliError(f"{len(failed)} of {count} failed", code=Exit.PARTLY, kind="partly")
    if failed:
        raise CliError(f"all {len(failed)} failed", code=Exit(failed[0][1].exit_code), kind=failed[0][1].kind)


def waive_each(
    session: Session, endpoint: Endpoint[WaiveRequest, A], machines: Sequence[str], show: Callable[[A], None]
) -> None:
    """Have a rotation no longer wait for these nodes, one after the other, and show how the rotation stands then.

    Raises:
        CliError: all failed (the first error), some failed (partly done), or the daemon went away.
    """
    view, failed = None, []
    for machine in machines:
        try:
            view = session.ask(partial(Head.call, endpoint=endpoint, request=WaiveRequest(machine=machine)))
        except UnreachableError:
            raise
        except CliError as error:
            failed.append((machine, error))
    if view is None:
        raise failed[0][1]
    show(view)
    tell_failed(failed, len(machines))


async def _ask_all(
    head: Head, machines: Sequence[str], ask: Callable[[Head, str], Awaitable[MachineAnswer]]
) -> _Results:
    results = _Results([], [])
    for machine in dict.fromkeys(machines):
        try:
            results.done.append(await ask(head, machine))
        except UnreachableError:
            raise
        except CliError as error:
            results.failed.append((machine, error))
    return results


def _print(results: _Results, *, as_json: bool) -> None:
    if as_json:
        failures = [MachineFailure(machine=machine, error=error.view()) for machine, error in results.failed]
        print_json(MachineAnswers(machines=results.done, failed=failures))
    elif results.done:
        render.show(render.machines(results.done))
    for answer in results.done:
        for warning in answer.warnings:
            say(f"warning: {answer.machine}: {warning}")
