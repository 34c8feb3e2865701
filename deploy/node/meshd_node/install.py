"""Installs the agent as a service of this machine, and starts it. Idempotent."""

from __future__ import annotations

from . import units
from .files import write_atomic
from .node import Node
from .pod import lay_out
from .services import start_unit, supervised


def install(node: Node) -> None:
    """Write the units, enable them at boot, and start the agent. In a container, lay out the files of a pod.

    Raises:
        OSError, ToolFailed: the installation failed.
    """
    if not node.systemd:
        lay_out(node.paths)
        if supervised_agent(node):
            node.agent.start_soon()
        return
    paths = node.paths
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


def supervised_agent(node: Node) -> bool:
    """Whether something runs the agent's service already; on a foreign image stage 1 becomes the entry point later."""
    return node.systemd or supervised(node.paths.pod_services / "meshd-node")
