"""`meshctl doctor`: checks what meshd depends on."""

from __future__ import annotations

import asyncio

import click

from meshd.api import endpoints
from meshd.api.schema import CallerView, CheckRow, DoctorView
from meshd.cli.client import HeadClient
from meshd.cli.doctor_checks import run_checks
from meshd.cli.errors import CliError, ExitCode, UnreachableError
from meshd.cli.params.options import as_json_option
from meshd.cli.render.status import checks
from meshd.cli.render.terminal import show, spinner
from meshd.cli.session import Session, print_json
from meshd.codes import CheckName, ProblemCode
from meshd.plaintext import counted
from meshd.runtime.run import run


@click.command("doctor")
@as_json_option
@click.pass_obj
def command(session: Session, *, as_json: bool) -> None:
    """Check everything that meshd depends on.

    It says how to repair each fault. If the daemon is down, check what can be checked without it.
    """
    unreachable: UnreachableError | None = None
    try:
        with spinner("asking Slurm, the tailnet and the clouds ..."):
            view = session.ask(_ask)
    except UnreachableError as error:
        unreachable = error
        first = CheckRow(
            name=CheckName.DAEMON, status="fail", code=ProblemCode.DAEMON_UNREACHABLE, text=error.message,
            cure=error.cure,
        )  # fmt: skip
        rest = asyncio.run(run_checks(session.config, run))
        view = DoctorView(checks=[first, *rest], source="local")
    if as_json:
        print_json(view)
    else:
        show(*checks(view.checks, view.at))
    if unreachable is not None:
        raise CliError("the daemon cannot be reached", code=ExitCode.UNREACHABLE, kind="unreachable")
    faults = sum(row.status == "fail" for row in view.checks)
    if faults:
        raise CliError(f"{counted(faults, 'check')} failed", kind="unhealthy")


async def _ask(head: HeadClient) -> DoctorView:
    view = await head.call(endpoints.DOCTOR)
    return view.model_copy(update={"checks": [*view.checks, _access(await head.call(endpoints.CALLER))]})


def _access(caller: CallerView) -> CheckRow:
    if caller.may_write:
        return CheckRow(name=CheckName.ACCESS, status="ok", text=f"{caller.user} may make changes")
    return CheckRow(
        name=CheckName.ACCESS,
        status="warn",
        code=ProblemCode.ACCESS_READ_ONLY,
        text=f"{caller.user} may look, but not make changes",
        cure=f"use root, or `usermod -aG {caller.group} {caller.user}` and log in again",
    )
