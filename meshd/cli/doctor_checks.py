"""What `meshctl doctor` checks when the daemon is down. Each check has a deadline, and none raises."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from meshd.api.schema import CheckRow
from meshd.cli.settings_check import error_rows
from meshd.codes import CheckName, ProblemCode
from meshd.config import Settings, load
from meshd.errors import CommandError, CommandNotFound, CommandTimeout, ConfigError
from meshd.runtime.run import Result, Runner

_TIMEOUT_S = 5.0


async def run_checks(config: Path, run: Runner) -> list[CheckRow]:
    """All checks, at the same time.

    Args:
        config: the settings file.
        run: runs commands.
    """
    settings, config_rows = _settings(config)
    rows = await asyncio.gather(
        _unit("meshd.service", run),
        _unit(settings.slurm.slurmctld_unit if settings else "slurmctld.service", run),
        _slurm(run),
        _munge(run),
        _tailscale(settings.tailnet.socket if settings else None, run),
    )
    return [*config_rows, *rows]


def _settings(config: Path) -> tuple[Settings | None, list[CheckRow]]:
    try:
        settings = load(config)
    except ConfigError as error:
        return None, error_rows(error)
    return settings, [CheckRow(name=str(config), status="ok", text=f"cluster {settings.cluster.name}")]


async def _unit(unit: str, run: Runner) -> CheckRow:
    try:
        found = await run(["systemctl", "is-active", unit], timeout_s=_TIMEOUT_S, check=False)
    except (CommandNotFound, CommandTimeout) as error:
        return CheckRow(name=unit, status="warn", code=ProblemCode.CHECK_FAILED, text=str(error))
    state = (found.stdout.strip() or found.stderr.strip() or "unknown").splitlines()[0]
    if state == "active":
        return CheckRow(name=unit, status="ok", text="active")
    return CheckRow(
        name=unit,
        status="fail",
        code=ProblemCode.UNIT_NOT_ACTIVE,
        text=state,
        cure=f"`systemctl start {unit}`; if it stops again: `journalctl -u {unit}`",
    )


async def _slurm(run: Runner) -> CheckRow:
    cure = "`systemctl status slurmctld`; `journalctl -u slurmctld`"
    try:
        found = await run(["scontrol", "ping"], timeout_s=_TIMEOUT_S)
    except CommandNotFound as error:
        return _fail(CheckName.SLURM, ProblemCode.PROGRAM_MISSING, str(error), "install Slurm's commands on the head")
    except (CommandError, CommandTimeout) as error:
        return _fail(CheckName.SLURM, ProblemCode.SLURMCTLD_DOWN, str(error), cure)
    line = found.stdout.strip().splitlines()[0] if found.stdout.strip() else "no answer"
    if " UP" in line.upper():
        return CheckRow(name=CheckName.SLURM, status="ok", text=line)
    return _fail(CheckName.SLURM, ProblemCode.SLURMCTLD_DOWN, line, cure)


async def _munge(run: Runner) -> CheckRow:
    cure = "`systemctl status munge`; check that /etc/munge/munge.key exists (`meshctl init` makes one)"
    try:
        made = await run(["munge", "-n"], timeout_s=_TIMEOUT_S)
        await run(["unmunge", "-n"], timeout_s=_TIMEOUT_S, stdin=made.stdout.encode())
    except CommandNotFound as error:
        return _fail(CheckName.MUNGE, ProblemCode.PROGRAM_MISSING, str(error), "install munge on the head")
    except (CommandError, CommandTimeout) as error:
        return _fail(CheckName.MUNGE, ProblemCode.MUNGE_BROKEN, str(error), cure)
    return CheckRow(name=CheckName.MUNGE, status="ok", text="encodes and decodes")


async def _tailscale(socket: Path | None, run: Runner) -> CheckRow:
    at = [] if socket is None else [f"--socket={socket}"]
    try:
        found = await run(["tailscale", *at, "status", "--json", "--peers=false"], timeout_s=_TIMEOUT_S)
    except CommandNotFound as error:
        return _fail(CheckName.TAILSCALE, ProblemCode.PROGRAM_MISSING, str(error), "install tailscale on the head")
    except (CommandError, CommandTimeout) as error:
        return _fail(CheckName.TAILSCALE, ProblemCode.TAILSCALE_OFFLINE, str(error), "`systemctl status tailscaled`")
    return _tailscale_row(found)


def _tailscale_row(found: Result) -> CheckRow:
    try:
        status = json.loads(found.stdout)
        state, online = status.get("BackendState", ""), bool((status.get("Self") or {}).get("Online"))
        health = [str(line) for line in status.get("Health") or []]
    except (ValueError, AttributeError) as error:
        return _fail(CheckName.TAILSCALE, ProblemCode.CHECK_FAILED, f"cannot read its status: {error}", "")
    if state == "Running" and online:
        return CheckRow(name=CheckName.TAILSCALE, status="ok", text="online")
    why = "; ".join(health) or f"state {state or 'unknown'}, {'online' if online else 'not online'}"
    return _fail(CheckName.TAILSCALE, ProblemCode.TAILSCALE_OFFLINE, why, "`tailscale up`, then `tailscale status`")


def _fail(name: CheckName, code: ProblemCode, text: str, cure: str) -> CheckRow:
    return CheckRow(name=name, status="fail", code=code, text=text, cure=cure)
