"""I/O: runs Slurm's own programs: its parser on the planned files, its version, its running configuration.

`scontrol show hostnames` contacts no daemon, but first reads the whole configuration, and fails when it cannot read it
(measured on 22.05.8 and 24.11.5). It does not check for names that occur twice or plugins that conflict. Only slurmctld
does, and meshd cannot start a second one beside it. `names` and `amend` check those rules.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from meshd.errors import CommandError, CommandNotFound, CommandTimeout
from meshd.runtime.run import Runner
from meshd.slurm.capabilities import SlurmVersion, parse_version
from meshd.slurm.init.codes import InitRefused, Refusal
from meshd.slurm.init.types import NODES_INCLUDES, SLURM_CONF, InitInput, InitPlan

PARSE_S = 90.0
"""Slurm waits 60 s for a missing included file."""

LOOK_S = 5.0
CONNECT_S = 1.0
_UNREAD = re.compile(r"pars(e|ing) error|unable to process configuration", re.IGNORECASE)


async def check_parse(run: Runner, have: InitInput, plan: InitPlan) -> None:
    """Let Slurm parse the planned files. Checks nothing where Slurm's commands are missing.

    Raises:
        InitRefused: Slurm cannot read the planned files, or the present ones.
    """
    path = have.conf_dir / SLURM_CONF
    change = next((c for c in plan.files if c.path == path), None)
    new = change.new if change is not None else have.slurm_conf
    if new is None:
        return
    nodes = {have.conf_dir / name: plan.first_nodes_conf for name in NODES_INCLUDES}  # meshd's may not be there yet
    texts = {**nodes, **have.texts()}
    after = await _complaint(run, {**texts, path: new}, have.conf_dir)
    if not after:
        return
    old = have.slurm_conf
    before = after if change is None else await _complaint(run, {**texts, path: old}, have.conf_dir) if old else ""
    if not before:
        raise InitRefused(
            Refusal.WOULD_BREAK,
            f"Slurm can read the present {path}, but not the planned one: {after}",
            "make the changes that `meshctl init --dry-run` shows by hand, as far as Slurm accepts them, "
            "then `meshctl init` again",
        )
    if _UNREAD.search(before):
        raise InitRefused(
            Refusal.SLURM_REJECTS,
            f"Slurm cannot read the present {path}: {before}",
            "correct that: `scontrol show hostnames x` prints only x once Slurm can read its files",
        )


async def version(run: Runner) -> SlurmVersion | None:
    """The version of Slurm on this machine; None where Slurm is not installed."""
    for program in ("slurmctld", "scontrol"):
        try:
            return parse_version((await run([program, "-V"], timeout_s=LOOK_S)).stdout)
        except (CommandNotFound, CommandError, CommandTimeout):
            continue
    return None


async def running(run: Runner, address: str, port: int) -> dict[str, str]:
    """The configuration of the running slurmctld by `scontrol show config`, keys in lower case; empty without one.

    Args:
        run: runs scontrol.
        address: where slurmctld listens. Checked first, since scontrol waits for seconds when nothing listens there.
        port: its port.
    """
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(address, port)
        writer.close()
    except OSError:  # a time-out is one too
        return {}
    try:
        shown = (await run(["scontrol", "show", "config"], timeout_s=LOOK_S)).stdout
    except (CommandNotFound, CommandError, CommandTimeout):
        return {}
    pairs = (line.partition("=") for line in shown.splitlines())
    return {key.strip().lower(): value.strip() for key, equals, value in pairs if equals}


async def _complaint(run: Runner, texts: Mapping[PurePosixPath, str], conf_dir: PurePosixPath) -> str:
    """The error of Slurm's parser for these files; "" when it reads them all."""
    with tempfile.TemporaryDirectory(prefix="meshd-init-") as name:
        scratch = Path(name)
        for path, text in texts.items():
            if path.is_relative_to(conf_dir):
                place = scratch / path.relative_to(conf_dir)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(text.encode("utf-8", "surrogateescape"))
        try:
            done = await run(
                ["scontrol", "show", "hostnames", "x"],
                timeout_s=PARSE_S,
                env={"SLURM_CONF": str(scratch / SLURM_CONF)},
                check=False,
            )
        except CommandNotFound:
            return ""
        words = done.stderr.replace(f"{scratch}/", f"{conf_dir}/").replace("scontrol: ", "")
        return "" if done.returncode == 0 else " ".join(words.split())[:400] or f"exit status {done.returncode}"
