"""Keeps what explains a failure: a sandbox's own files are gone a moment later."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.sandbox.proc import CommandError

if TYPE_CHECKING:
    from deploy.sandbox.cluster import Cluster

_TIMEOUT_S = 15.0
HEAD_COMMANDS: dict[str, list[str]] = {
    "journal.log": ["journalctl", "--no-pager", "-b"],
    "units.txt": ["systemctl", "--no-pager", "status", "meshd", "slurmctld", "munge", "tailscaled"],
    "slurmctld.log": ["cat", "/var/log/slurm/slurmctld.log"],
    "slurm-files.txt": ["sh", "-c", "head -n 999 /etc/slurm/*.conf"],
    "nodes.txt": ["scontrol", "show", "nodes"],
    "status.json": ["meshctl", "status", "-o", "json"],
    "events.json": ["meshctl", "events", "-o", "json", "--limit", "1000"],
    "tailscale.json": ["tailscale", "status", "--json"],
}
NODE_COMMAND = [
    "sh",
    "-c",
    "if [ -d /run/systemd/system ]; then journalctl --no-pager -b; "
    "else tail -n 100 /var/log/meshd-pod/* /var/log/meshd-pod/*/current; ps ax; fi; echo; "
    "tail -n 200 /var/log/slurm/slurmd.log; tailscale status",
]


async def save(cluster: Cluster, folder: Path) -> None:
    """Write the logs of a cluster that still runs into a folder, emptied first. Does without what is missing."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    names = cluster.world.hypervisor.names()
    commands = HEAD_COMMANDS if "head" in names else {}
    jobs = [_keep(cluster, "head", argv, folder / f"head-{file}") for file, argv in commands.items()]
    jobs += [_keep(cluster, name, NODE_COMMAND, folder / f"{name}.log") for name in names if name != "head"]
    await asyncio.gather(*jobs)
    state = cluster.world.state
    for path in [state / "control.log", *(state / "consoles").glob("*.log")]:
        if path.is_file():
            shutil.copyfile(path, folder / f"{'console-' if path.parent.name == 'consoles' else ''}{path.name}")


async def _keep(cluster: Cluster, machine: str, argv: list[str], path: Path) -> None:
    try:
        result = await cluster.world.hypervisor.run(machine, argv, timeout_s=_TIMEOUT_S, check=False)
    except (CommandError, RuntimeError, OSError, KeyError) as error:
        path.write_text(f"{error}\n")
    else:
        path.write_bytes(result.stdout + result.stderr)
