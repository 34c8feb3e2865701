"""PURE: whether a machine that asks to join is what was rented, and can be a node of this Slurm."""

from __future__ import annotations

import re
from dataclasses import replace

from meshd import gpus
from meshd.codes import JoinCode
from meshd.errors import JoinRefused
from meshd.model.desired import Promise
from meshd.model.hardware import NodeFacts, NodeShape
from meshd.plan.limits import gpus_fault, memory_promised_mib, shape_fault, usable
from meshd.plan.promise import shortfall

CLOCK_CURE = "let NTP run on both (timedatectl set-ntp true; chronyc makestep)"
POD_CLOCK_CURE = (
    "let NTP run on the head. A pod's clock is its host's, and nothing in the pod can set it: where it stays wrong, "
    "`meshctl remove MACHINE` gives the pod back; tell the provider"
)


def release(version: str) -> tuple[int, int] | None:
    """The major release of a Slurm version: "24.11.5" -> (24, 11); None when the text has another form."""
    match = re.match(r"^(\d{2})\.(\d{2})(?:\D|$)", version)
    return (int(match[1]), int(match[2])) if match else None


def release_text(one: tuple[int, int]) -> str:
    """As SchedMD writes it: (23, 2) -> "23.02"."""
    return "{:02d}.{:02d}".format(*one)


def _releases() -> tuple[tuple[int, int], ...]:
    """Slurm's major releases in order: every nine months until 23.11, then every May and November."""
    early = ((20, 2), (20, 11), (21, 8), (22, 5), (23, 2), (23, 11))
    return early + tuple((year, month) for year in range(24, 40) for month in (5, 11))


RELEASES = _releases()


def slurmd_window(slurmctld_version: str) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The oldest and newest slurmd releases that a slurmctld serves; None when its version is not known.

    slurmd must not be newer than slurmctld, and at most two major releases older; three from 24.11 on (SchedMD's
    upgrade guide, "Compatibility window").
    """
    newest = release(slurmctld_version)
    if newest is None or newest not in RELEASES:
        return None
    back = 3 if newest >= (24, 11) else 2
    return RELEASES[max(RELEASES.index(newest) - back, 0)], newest


def check_facts(
    facts: NodeFacts,
    *,
    gpus_rented: int,
    gpu_model: str,
    slurmctld_version: str,
    clock_skew_max_s: float,
    promise: Promise | None = None,
) -> None:
    """Check a machine that asks to join.

    Args:
        facts: the machine's report.
        gpus_rented: the offer's number of GPUs; 0 for a machine without.
        gpu_model: the offer's normalised model, e.g. "h100-sxm"; "" skips the check.
        slurmctld_version: the head's; "" when it is not known, which skips the check.
        clock_skew_max_s: the largest difference between the clocks, either way.
        promise: what its slot promises to jobs; None where nothing is promised, or it is a node already.

    Raises:
        JoinRefused: for the first fault found. Only a wrong clock is not fatal: time synchronisation may still mend it.
    """
    _check_clock(facts, clock_skew_max_s)
    _check_slurmd(facts.slurmd_version, slurmctld_version)
    if facts.shape.cpus < 1 or facts.shape.memory_mib < 1:
        raise JoinRefused(
            "slurmd -C shows no CPUs or no memory",
            "run slurmd -C on the machine and see why",
            code=JoinCode.NO_HARDWARE,
        )
    if fault := shape_fault(facts.shape):
        raise JoinRefused(f"slurmd -C: {fault}", "run slurmd -C on the machine and see why", code=JoinCode.NO_HARDWARE)
    _check_gpus(facts, gpus_rented, gpu_model)
    if promise is not None and (short := shortfall(facts, promise)):
        raise JoinRefused(
            short,
            "lower cpus_min and memory_min_mib of its pool, or name providers whose machines have what they say "
            "(docs/slurm.md, What a node promises)",
            code=JoinCode.PROMISE,
        )


def _check_clock(facts: NodeFacts, max_s: float) -> None:
    skew_s = facts.clock_skew_s
    if abs(skew_s) <= max_s:
        return
    side = "ahead of" if skew_s > 0 else "behind"
    raise JoinRefused(
        f"the machine's clock is {abs(skew_s):.0f} s {side} the head's; at most {max_s:.0f} s is accepted, "
        "since munge refuses credentials that are 300 s off",
        POD_CLOCK_CURE if facts.systemd is False else CLOCK_CURE,
        fatal=False,
        code=JoinCode.CLOCK_SKEW,
    )


def _check_slurmd(slurmd: str, slurmctld: str) -> None:
    if not slurmd:
        raise JoinRefused(
            "slurmd is not installed on the machine",
            "use an image with slurmd, or let it be installed",
            code=JoinCode.SLURMD_MISSING,
        )
    own, window = release(slurmd), slurmd_window(slurmctld)
    if own is None:
        raise JoinRefused(
            f"slurmd's version {slurmd!r} is not understood",
            "use a released Slurm on the machine",
            code=JoinCode.SLURMD_VERSION,
        )
    if window is None or window[0] <= own <= window[1]:
        return
    oldest, newest = map(release_text, window)
    relation = "newer than" if own > window[1] else "too old for"
    raise JoinRefused(
        f"slurmd {slurmd} is {relation} slurmctld {slurmctld}, which serves {oldest} to {newest}",
        f"use an image with slurmd {newest}",
        code=JoinCode.SLURMD_VERSION,
    )


def _check_gpus(facts: NodeFacts, rented: int, model: str) -> None:
    working = [gpu for gpu in facts.gpus if gpu.memory_mib > 0]
    if len(working) < rented:
        broken = [f"GPU {gpu.index} has no memory" for gpu in facts.gpus if gpu.memory_mib <= 0]
        words = "; ".join([facts.gpu_fault, *broken] if facts.gpu_fault else broken)
        raise JoinRefused(
            f"{rented} GPUs were rented and nvidia-smi shows {len(working)}" + (f": {words}" if words else ""),
            "look for a missing driver or a broken GPU (dmesg); the machine is given back",
            code=JoinCode.GPUS_MISSING,
        )
    used = usable(facts.gpus, rented)
    if fault := gpus_fault(used):
        raise JoinRefused(
            fault,
            "load the driver (nvidia-modprobe -c 0 -u); see `nvidia-smi -L` on the machine",
            code=JoinCode.GPUS_FAULTY,
        )
    for gpu in used:
        if model and not gpus.related(model, gpus.normalise(gpu.name)):
            raise JoinRefused(
                f"GPU {gpu.index} is a {gpu.name}, and {model} was rented",
                "the cloud gave another model: the machine is given back",
                code=JoinCode.GPU_MODEL,
            )


def check_same(facts: NodeFacts, accepted: NodeFacts, *, gpus_rented: int, memory_fraction: float) -> None:
    """Check that a machine with a line in Slurm still has the hardware of that line.

    Versions, names and the clock may change. The memory may change as long as it is what the line promises.

    Args:
        facts: the machine's report now.
        accepted: its report when it joined.
        gpus_rented: the number of GPUs that count.
        memory_fraction: the part of its memory that its line promises.

    Raises:
        JoinRefused: the hardware has changed. Not fatal: jobs may run on it, and it may come back as it was.
    """
    cure = "`meshctl remove MACHINE` replaces it; it may also come back as it was (reboot it, look for a broken GPU)"
    now, then = replace(facts.shape, memory_mib=0), replace(accepted.shape, memory_mib=0)
    if now != then:
        raise JoinRefused(
            f"its hardware has changed since it joined: {_counts(then)}, now {_counts(now)}",
            cure,
            fatal=False,
            code=JoinCode.HARDWARE_CHANGED,
        )
    promised_mib = memory_promised_mib(accepted.shape.memory_mib, memory_fraction)
    if facts.shape.memory_mib < promised_mib:
        text = f"it has {facts.shape.memory_mib} MiB of memory now, and its line in Slurm promises {promised_mib}"
        raise JoinRefused(text, cure, fatal=False, code=JoinCode.HARDWARE_CHANGED)
    old, new = ([(g.device, g.name) for g in usable(f.gpus, gpus_rented)] for f in (accepted, facts))
    if old != new:
        raise JoinRefused(
            f"its GPUs have changed since it joined: {_devices(old)}, now {_devices(new)}",
            cure,
            fatal=False,
            code=JoinCode.HARDWARE_CHANGED,
        )


def _counts(shape: NodeShape) -> str:
    return (
        f"{shape.cpus} CPUs, {shape.boards}x{shape.sockets_per_board}x{shape.cores_per_socket}x{shape.threads_per_core}"
    )


def _devices(gpus_: list[tuple[str, str]]) -> str:
    return " ".join(device or "none" for device, _ in gpus_) or "none"
