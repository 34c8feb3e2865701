"""The heartbeat: the state of this machine, in each poll to the head."""

from __future__ import annotations

from typing import Any

from . import VERSION, munge
from .gpu import LoadWatch
from .paths import Paths
from .processes import container_boot, load1, look, uptime_s


def take(paths: Paths, load: LoadWatch, systemd: bool) -> dict[str, Any]:
    """One heartbeat. Costs one pass over /proc. Without systemd this is a container, whose start counts as its boot."""
    running = look(paths.proc)
    gpus, fault = load.last()
    try:
        boot_id = (paths.proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = ""
    up_s = uptime_s(paths.proc)
    if not systemd:
        boot_id, up_s = container_boot(paths.proc, boot_id)
    return {
        "agent_version": VERSION,
        "boot_id": boot_id,
        "uptime_s": up_s,
        "load1": load1(paths.proc),
        "slurmd_alive": running.slurmd,
        "munged_alive": munge.answers(paths),
        "munge_key": munge.digest_of(paths.munge_key),
        "munge_key_staged": munge.digest_of(paths.munge_key_staged),
        "jobs": len(running.jobs),
        "gpus": gpus,
        "gpu_fault": fault,
    }
