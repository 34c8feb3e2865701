"""What kind of machine this is. Two independent facts, found on the machine: systemd, and a TUN device."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from .paths import Paths

CAP_NET_ADMIN = 12
CAP_SYS_ADMIN = 21
CAP_SYS_NICE = 23


def has_systemd(paths: Paths) -> bool:
    """Whether systemd runs. Where it does not, this is a container, and s6 runs the services."""
    return paths.systemd_marker.is_dir()


def has_tun(paths: Paths) -> bool:
    """Whether tailscaled has a TUN device, or can make one: /dev/net/tun can be opened, and CAP_NET_ADMIN is effective.

    deploy/container/has-tun decides the same for the service of tailscaled, stage1_container.sh before there is one.
    """
    if paths.tailscale_interface.exists():
        return True
    if not paths.tun.is_char_device() or not may_change_network(paths.proc):
        return False
    with suppress(OSError):
        os.close(os.open(str(paths.tun), os.O_RDWR | os.O_CLOEXEC))
        return True
    return False


def may_change_network(proc: Path) -> bool:
    """Whether CAP_NET_ADMIN is effective: it is needed for devices, routes and firewall rules."""
    return has_capability(proc, CAP_NET_ADMIN)


def may_mount(proc: Path) -> bool:
    """Whether CAP_SYS_ADMIN is effective: it is needed for mounts."""
    return has_capability(proc, CAP_SYS_ADMIN)


def has_capability(proc: Path, number: int) -> bool:
    """Whether a capability is effective."""
    try:
        lines = (proc / "self/status").read_text().splitlines()
        caps = next(line for line in lines if line.startswith("CapEff:"))
        return bool(int(caps.split()[1], 16) >> number & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return False
