"""Installs the agent as a service of this machine, and starts it. Idempotent."""

from __future__ import annotations

import subprocess
import sys

from . import units
from .files import write_atomic
from .node import Node
from .services import start_unit


def install(node: Node, options: list[str]) -> None:
    """Write the units, enable them at boot, and start the agent.

    Args:
        node: this machine.
        options: the global options to pass on to `run` where there is no systemd.

    Raises:
        OSError, ToolFailed: the installation failed.
    """
    paths = node.paths
    if not node.systemd:
        paths.run_dir.mkdir(parents=True, exist_ok=True)
        paths.agent_log.parent.mkdir(parents=True, exist_ok=True)
        with paths.agent_log.open("ab") as log:
            # not our own output: that may be a pipe whose reader waits for its end
            subprocess.Popen(
                [sys.executable, str(paths.agent), *options, "run"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return
    if not paths.slurmd_env.exists():
        write_atomic(paths.slurmd_env, b"SLURMD_ARGS=\n", 0o600)
    node.install_units(True)
    for target, unit in (("multi-user.target", units.NODE_UNIT), ("sysinit.target", units.METADATA_UNIT)):
        wants = paths.units / f"{target}.wants"
        wants.mkdir(parents=True, exist_ok=True)
        link = wants / unit
        if not link.is_symlink():
            link.symlink_to(f"/etc/systemd/system/{unit}")
    start_unit(node.systemctl, "--no-block", "restart", units.NODE_UNIT)
