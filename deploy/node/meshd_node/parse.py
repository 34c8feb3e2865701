"""PURE: what `slurmd -C`, nvidia-smi and version commands print, made into plain values."""

from __future__ import annotations

import re
from typing import Any

from .errors import NotPossible

GPU_QUERY = "index,uuid,name,memory.total"
LOAD_QUERY = "index,utilization.gpu,memory.used"
_SHAPE = {
    "cpus": "CPUs",
    "boards": "Boards",
    "sockets_per_board": "SocketsPerBoard",
    "cores_per_socket": "CoresPerSocket",
    "threads_per_core": "ThreadsPerCore",
    "memory_mib": "RealMemory",
}


def slurmd_c(text: str) -> dict[str, int]:
    """The hardware that `slurmd -C` prints: `NodeName=x CPUs=4 Boards=1 ... RealMemory=1000` and an UpTime line.

    Raises:
        NotPossible: a field is missing.
    """
    line = next((one for one in text.splitlines() if one.startswith("NodeName=")), "")
    fields = dict(re.findall(r"(\w+)=(\S+)", line))
    if "SocketsPerBoard" not in fields and "Sockets" in fields:
        fields["SocketsPerBoard"] = fields["Sockets"]
    fields.setdefault("Boards", "1")
    shape = {}
    for ours, slurms in _SHAPE.items():
        value = fields.get(slurms, "")
        if not value.isdigit() or (int(value) < 1):
            raise NotPossible(f"slurmd -C told no usable {slurms}", "run slurmd -C on the machine and see why")
        shape[ours] = int(value)
    return shape


def version(text: str) -> str:
    """The first dotted number of a version command's output, e.g. `slurm 24.11.5` -> `24.11.5`; "" when none."""
    match = re.search(r"\d+\.\d+(?:\.\d+)*(?:-\d+)?", text)
    return match.group(0).split("-")[0] if match else ""


def gpus(text: str) -> list[dict[str, Any]]:
    """GPUs from `nvidia-smi --query-gpu=index,uuid,name,memory.total --format=csv,noheader,nounits`.

    A line that cannot be read (a GPU that fell off the bus prints words instead of numbers) is no GPU.
    """
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) < 4 or not parts[0].isdigit() or not parts[1].startswith("GPU-"):
            continue
        memory = parts[3] if parts[3].isdigit() else "0"
        found.append({"index": int(parts[0]), "uuid": parts[1], "name": parts[2], "memory_mib": int(memory)})
    return found


def gpu_load(text: str) -> list[dict[str, int]]:
    """GPU load from `nvidia-smi --query-gpu=index,utilization.gpu,memory.used --format=csv,noheader,nounits`."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) < 3 or not parts[0].isdigit():
            continue
        found.append(
            {
                "index": int(parts[0]),
                "utilization_percent": int(parts[1]) if parts[1].isdigit() else 0,
                "memory_used_mib": int(parts[2]) if parts[2].isdigit() else 0,
            }
        )
    return found


def gpu_minor(text: str) -> tuple[str, int] | None:
    """(UUID, device minor) from /proc/driver/nvidia/gpus/*/information; None when it tells neither."""
    uuid = re.search(r"^GPU UUID:\s*(\S+)", text, re.MULTILINE)
    minor = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
    return (uuid.group(1), int(minor.group(1))) if uuid and minor else None


def os_name(text: str) -> str:
    """PRETTY_NAME of an os-release file."""
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)"?', text, re.MULTILINE)
    return match.group(1) if match else ""


def step_job(cmdline: str) -> str:
    """The job id of a slurmstepd from its title `slurmstepd: [12.batch]`; "" when the title has none."""
    match = re.search(r"\[(\d+)", cmdline)
    return match.group(1) if match else ""
