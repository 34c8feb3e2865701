"""What has to be true afterwards, and how it is found out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.sandbox.cgroup import groups_of
from deploy.sandbox.presence import STATE_ROOT
from deploy.sandbox.processes import ProcessId
from deploy.sandbox.tailnet import Device

FREE_SLOT = "meshd: free slot"
_UUID = re.compile(r"\(UUID: (GPU-[0-9a-f-]+)\)")
_NODE = re.compile(r"^(?:\d+: )?node (\S+)$", re.MULTILINE)
_RESIDENT = re.compile(r"^VmRSS:\s+(\d+) kB", re.MULTILINE)
_HOST_PATHS = ("/etc/slurm", "/etc/munge", "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/var/lib/tailscale")


class DifferenceError(RuntimeError):
    """Something is not as it has to be."""


def gpus_listed(text: str) -> set[str]:
    """The different GPUs that `nvidia-smi -L` printed."""
    return set(_UUID.findall(text))


def providers_listed(text: str, rented: Mapping[str, str], providers: Sequence[str]) -> dict[str, int]:
    """How many nodes of each provider the job's lines "node NAME" name; `rented` has each node's provider."""
    found = [rented.get(node, "") for node in set(_NODE.findall(text))]
    return {name: found.count(name) for name in providers}


def not_as_shared_out(found: Mapping[str, int], wanted: Mapping[str, int]) -> list[str]:
    """The providers that have more or fewer nodes than fit there."""
    return [f"{name} has {found.get(name, 0)} nodes, not {nodes}" for name, nodes in wanted.items()
            if found.get(name, 0) != nodes]  # fmt: skip


def resident_mib(status: str) -> float:
    """Resident memory of a process, of its /proc/PID/status."""
    found = _RESIDENT.search(status)
    return int(found[1]) / 1024 if found else 0.0


def slots_not_free(sinfo: str) -> list[str]:
    """Slots that Slurm does not show as free, of `sinfo -h -N -o '%N|%T|%E'`."""
    rows = [line.split("|") for line in sinfo.splitlines() if line.strip()]
    return [f"{row[0]} is {row[1]} ({row[-1]})" for row in rows if not _is_free(row)]


def _is_free(row: Sequence[str]) -> bool:
    """Whether the slot is switched off, as the queue has it, or DOWN as a free slot of a pool that people scale."""
    if row[1].strip() == "idle~":
        return True
    return row[1].rstrip("*$@#~").startswith("down") and row[-1].strip().startswith(FREE_SLOT)


def machines_running(answer: Mapping[str, Any]) -> list[str]:
    """Machines that the cloud still runs, of the admin API's /machines."""
    return [f"{m['name']} ({m['life']})" for m in answer["machines"] if m["life"] != "ended"]


def strangers(devices: Sequence[Device]) -> list[str]:
    """Devices of the tailnet besides the head."""
    return [device.name for device in devices if device.hostname != "head"]


def traces(sandbox_id: str, processes: Sequence[ProcessId] = ()) -> list[str]:
    """What is left of a sandbox on this host: should be nothing.

    Args:
        sandbox_id: the sandbox.
        processes: that belonged to it.
    """
    state = STATE_ROOT / sandbox_id
    found = [f"process {process.pid}" for process in processes if process.alive()]
    name = f"meshd-{sandbox_id}"
    for path in (Path("/run/netns") / name, *Path("/run/netns").glob(f"{name}-*"), state):
        if path.exists():
            found.append(str(path))
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4]
        if f"{point}/".startswith(f"{state}/"):
            found.append(f"mount {point}")
    return found + [str(group) for group in groups_of(sandbox_id)]


def host_state() -> dict[str, str]:
    """What of the host's own configuration a sandbox must not touch, in a form that can be compared."""
    state = {path: _stamp(Path(path)) for path in _HOST_PATHS}
    for table in ("/proc/net/route", "/proc/net/ip_tables_names", "/proc/net/if_inet6"):
        try:
            state[table] = Path(table).read_text()
        except OSError:
            state[table] = ""
    state["interfaces"] = " ".join(sorted(path.name for path in Path("/sys/class/net").glob("*")))
    return state


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Which of them differ."""
    return [f"{name} has changed" for name, was in before.items() if after.get(name) != was]


def _stamp(path: Path) -> str:
    files = [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]
    stamps = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        stamps.append(f"{file} {status.st_mtime_ns} {status.st_size} {status.st_mode} {status.st_uid}")
    return "\n".join(stamps)
