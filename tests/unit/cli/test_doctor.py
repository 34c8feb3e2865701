"""`meshctl doctor`, with and without the daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from meshd.api.endpoints import DOCTOR
from meshd.api.schema import CheckRow, DoctorView
from meshd.cli.doctor_checks import run_checks
from meshd.errors import CommandError, CommandNotFound, CommandTimeout
from meshd.runtime.run import Result
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl


def test_doctor(served: SimHead, meshctl: Meshctl) -> None:
    fine = CheckRow(name="slurm", status="ok", text="24.11.5 answers")
    served.give(DOCTOR, DoctorView(checks=[fine]))
    ran = meshctl("doctor")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "ok    slurm: 24.11.5 answers")
    broken = CheckRow(name="munge", status="fail", text="no key", cure="run `meshctl init`")
    served.give(DOCTOR, DoctorView(checks=[broken]))
    ran = meshctl("doctor")
    assert ran.code == 1
    assert "fail  munge: no key\n      do: run `meshctl init`\n" in ran.out


def test_local_checks(tmp_path: Path) -> None:

    async def run(argv: Sequence[str], **_: object) -> Result:
        result = Result(tuple(argv), 0, "", "")
        match argv[0]:
            case "systemctl":
                return replace(result, stdout="active\n") if "slurm" in argv[2] else replace(result, stdout="failed\n")
            case "scontrol":
                return replace(result, stdout="Slurmctld(primary) at head is UP\n")
            case "munge":
                raise CommandError(["munge"], 1, "Failed to access munge.socket.2")
            case "tailscale":
                raise CommandTimeout(["tailscale"], 5)
        raise CommandNotFound(argv[0])

    path = tmp_path / "meshd.toml"
    path.write_text('[cluster]\nname = "lab"\n')
    rows = {row.name: row for row in asyncio.run(run_checks(path, run))}
    assert {name: row.status for name, row in rows.items()} == {
        str(path): "ok",
        "meshd.service": "fail",
        "slurmctld.service": "ok",
        "slurm": "ok",
        "munge": "fail",
        "tailscale": "fail",
    }
    assert all(row.cure for row in rows.values() if row.status == "fail")
