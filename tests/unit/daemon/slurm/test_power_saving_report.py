"""What is told of Slurm's power saving."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshd.bootstrap.assets import head_programs
from meshd.config import PoolSettings
from meshd.daemon.slurm.power_saving_report import PowerSavingReporter
from meshd.model.observed import Fresh, SlurmView, Unavailable
from meshd.runtime.run import Result
from meshd.slurm.client import SlurmClient
from meshd.slurm.head_programs import PROLOG_SLURMCTLD, RESUME_PROGRAM, SUSPEND_PROGRAM
from tests.live import live_settings
from tests.unit.worlds import NOW

ON = (
    f"ResumeProgram = {RESUME_PROGRAM}\nSuspendProgram = {SUSPEND_PROGRAM}\nSuspendTime = 2000000000 sec\n"
    f"PrologSlurmctld[0] = {PROLOG_SLURMCTLD}\n"
)
OFF = "ResumeProgram = (null)\nSuspendProgram = (null)\nSuspendTime = INFINITE\nPrologSlurmctld = (null)\n"


def reporter(
    tmp_path: Path, config: str, *, wants: bool, saving: bool = False, known: bool = True
) -> PowerSavingReporter:
    async def run(argv: Sequence[str], **_: object) -> Result:
        return Result(tuple(argv), 0, config, "")

    pool = PoolSettings(gpu="h100", scale_from_queue=wants)
    view = SlurmView("24.11.5", {}, (), power_saving=saving)
    slurm: Any = SimpleNamespace(current=Fresh(view, NOW) if known else Unavailable("no answer", NOW))
    return PowerSavingReporter(
        live_settings(pools={"a": pool}), slurm, SlurmClient(run, 1.0), tmp_path / "bell", tmp_path
    )


def install(tmp_path: Path) -> int:
    for path, text in head_programs().items():
        place = tmp_path / str(path).lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(0o755)
    os.mkfifo(tmp_path / "bell")
    return os.open(tmp_path / "bell", os.O_RDWR | os.O_NONBLOCK)


@pytest.mark.parametrize(
    ("wants", "saving", "known", "codes"),
    [
        (True, False, True, ["power_saving_off"]),
        (True, True, True, []),
        (False, False, True, []),
        (True, False, False, []),
    ],
)
def test_a_pool_that_the_queue_cannot_scale(
    wants: bool, saving: bool, known: bool, codes: list[str], tmp_path: Path
) -> None:
    found = list(reporter(tmp_path, OFF, wants=wants, saving=saving, known=known).problems())
    assert [(one.code, one.pool) for one in found] == [(code, "a") for code in codes]


@pytest.mark.skipif(os.geteuid() != 0, reason="the programs are root's")
@pytest.mark.parametrize(
    ("config", "wants", "found"),
    [
        (OFF, False, ("ok", "")),
        (OFF, True, ("fail", "power_saving_off")),
        (ON, True, ("ok", "")),
        (ON, False, ("ok", "")),
        (ON.replace(str(PROLOG_SLURMCTLD), "/opt/own"), True, ("warn", "prolog_off")),
    ],
)
async def test_the_doctor(config: str, wants: bool, found: tuple[str, str], tmp_path: Path) -> None:
    fd = install(tmp_path)
    row = await reporter(tmp_path, config, wants=wants).check()
    os.close(fd)
    assert (row.status, row.code) == found
    assert bool(row.cure) == (row.status != "ok")


@pytest.mark.skipif(os.geteuid() != 0, reason="the programs are root's")
async def test_programs_that_slurm_refuses_or_that_meshd_does_not_hear(tmp_path: Path) -> None:
    fd = install(tmp_path)
    program = tmp_path / str(RESUME_PROGRAM).lstrip("/")
    check = reporter(tmp_path, ON, wants=True).check
    for mode in (0o644, 0o775, 0o757):
        program.chmod(mode)
        assert (await check()).code == "power_saving_broken"
    program.chmod(0o755)
    os.chown(program, 1000, 0)
    assert (await check()).code == "power_saving_broken"
    os.chown(program, 0, 0)
    assert (await check()).status == "ok"
    os.close(fd)
    assert (await check()).code == "power_saving_broken", "nobody listens"
    program.unlink()
    assert (await check()).code == "power_saving_broken"
