"""I/O: measures the head as a node, enables its slurmd, and takes that back.

`python -m meshd.slurm.init.compute_setup --remove` is what `deploy/head/install --uninstall` runs, as root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from meshd.bootstrap.assets import agent_zipapp
from meshd.errors import CommandError, CommandNotFound, MeshdError, SlurmError
from meshd.model.hardware import GpuFact, NodeShape
from meshd.runtime.run import Runner, run
from meshd.slurm.conf import parse
from meshd.slurm.init.apply import apply_init
from meshd.slurm.init.compute import BLOCK, UNIT, taken_back
from meshd.slurm.init.marked import find
from meshd.slurm.init.types import (
    CONF_DIR,
    FORMER_DIR,
    GRES_CONF,
    JOB_ENV,
    SLURM_CONF,
    SLURM_DIR,
    ComputePlan,
    FileChange,
    InitPlan,
)

FACTS_S = 90.0
"""nvidia-smi alone may take 60 s for the first time after a boot."""

CALL_S = 20.0
START_S = 60.0
SLURMCTLD = "slurmctld.service"


async def facts(run: Runner) -> Mapping[str, Any]:
    """What the node agent would report of this machine: it is the one that looks.

    Raises:
        SlurmError: slurmd or nvidia-smi is there, and does not work.
    """
    with tempfile.TemporaryDirectory(prefix="meshd-init-") as directory:
        agent = Path(directory, "meshd-node.pyz")
        agent.write_bytes(agent_zipapp())
        try:
            done = await run([sys.executable, "-I", "-B", str(agent), "facts"], timeout_s=FACTS_S)
        except MeshdError as error:
            raise SlurmError(f"this host's hardware cannot be measured: {error}") from error
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


def shape_of(found: Mapping[str, Any]) -> NodeShape | None:
    """The hardware; None without slurmd, which measures it."""
    shape = NodeShape(**found["shape"])
    return shape if shape.cpus else None


def gpus_of(found: Mapping[str, Any]) -> tuple[GpuFact, ...]:
    """The GPUs that work."""
    return tuple(GpuFact(**gpu) for gpu in found["gpus"])


async def is_on(run: Runner, verb: str) -> bool:
    """What `systemctl is-enabled` or `is-active` says of slurmd."""
    try:
        return (await run(["systemctl", verb, "--quiet", UNIT], timeout_s=CALL_S, check=False)).returncode == 0
    except CommandNotFound:
        return False


async def jobs_on(run: Runner, head: str) -> tuple[str, ...] | None:
    """The ids of the jobs that have the head; None when slurmctld does not answer.

    A slurmctld that does not know the node has given it to no job.
    """
    try:
        shown = await run(["squeue", "--noheader", "--nodelist", head, "--format", "%i"], timeout_s=CALL_S)
    except CommandError as error:
        return () if "Invalid node name" in str(error) else None
    except MeshdError:
        return None
    return tuple(shown.stdout.split())


async def carry_out(plan: ComputePlan, run: Runner) -> None:
    """Do with slurmd what the plan says, after the files were written.

    Raises:
        SlurmError: systemctl refuses.
    """
    if plan.stop:
        await _systemctl(run, *(("disable", "--now") if plan.disable else ("stop",)), UNIT)
        with suppress(FileNotFoundError):
            Path(JOB_ENV).unlink()
        with suppress(OSError):
            Path(JOB_ENV).parent.rmdir()
        return
    with suppress(FileNotFoundError):
        Path(JOB_ENV).parent.chmod(0o711)  # by any umask: every user's tasks read the file
    if plan.enable:
        await _systemctl(run, "enable", UNIT)


async def remove(run: Runner, say: Callable[[str], object], conf_dir: Path = Path(CONF_DIR)) -> None:
    """Take the head's lines and slurmd back. Nothing happens on a head that does not compute, or while jobs run there.

    Raises:
        SlurmError: jobs run there, that is not known, or a service does not start.
        OSError: a file cannot be read or written.
    """
    slurm, gres = conf_dir / SLURM_CONF, conf_dir / GRES_CONF
    before = _read(slurm)
    if before is None or find(parse(before), BLOCK) is None:
        return
    head = socket.gethostname().split(".")[0]
    jobs = await jobs_on(run, head)
    if jobs or jobs is None:
        why = f"jobs {', '.join(jobs)} run there" if jobs else "slurmctld does not answer, so jobs may run there"
        raise SlurmError(f"this host stays a node of its cluster: {why}")
    text, gres_text, was_on = taken_back(before, _read(gres), head)
    texts = ((gres, _read(gres), gres_text), (slurm, before, text))
    reasons = ("this host is no node any more",)
    files = tuple(
        FileChange(PurePosixPath(path), old, new, reasons) for path, old, new in texts if new is not None and new != old
    )
    # As `meshctl init` writes them: a purge undoes what is recorded, the newest change first.
    apply_init(InitPlan(files, (), SLURM_DIR, FORMER_DIR, "", restart_slurmctld=True, findings=()), datetime.now(UTC))
    await carry_out(ComputePlan(stop=True, disable=not was_on), run)
    await _systemctl(run, "try-restart", SLURMCTLD)
    say(f"{slurm}: {head} is no node any more, and {UNIT} is as it was before")


async def _systemctl(run: Runner, *words: str) -> None:
    try:
        await run(["systemctl", *words], timeout_s=START_S)
    except MeshdError as error:
        raise SlurmError(f"systemctl {' '.join(words)}: {error}") from error


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None


def main() -> int:
    """The command line; the exit code: 0 done, 1 not possible."""
    parser = argparse.ArgumentParser(description="Takes back what `meshctl init --compute` did.")
    parser.add_argument("--remove", action="store_true", required=True)
    parser.parse_args()
    try:
        asyncio.run(remove(run, lambda text: sys.stderr.write(f"{text}\n")))
    except (MeshdError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
