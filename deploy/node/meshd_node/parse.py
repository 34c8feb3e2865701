"""PURE: parses the output of `slurmd -C`, nvidia-smi and version commands."""

from __future__ import annotations

import re
from typing import Any

from .errors import NotPossible

GPU_QUERY = "index,uuid,name,memory.total"
LOAD_QUERY = "index,utilization.gpu,memory.used"
FAULT_MAX = 400
"""The most characters of nvidia-smi's text about faulty GPUs."""
_UNTOLD = {"[n/a]", "[not supported]", "[not available]", "[requested functionality has been deprecated]"}
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
            raise NotPossible(
                f"slurmd -C printed no usable {slurms}", "run slurmd -C on the machine and see why", "slurmd"
            )
        shape[ours] = int(value)
    return shape


def version(text: str) -> str:
    """The first dotted number of a version command's output, e.g. `slurm 24.11.5` -> `24.11.5`; "" when none."""
    match = re.search(r"\d+\.\d+(?:\.\d+)*(?:-\d+)?", text)
    return match.group(0).split("-")[0] if match else ""


def gpus(text: str) -> list[dict[str, Any]]:
    """The working GPUs, from `nvidia-smi --query-gpu=GPU_QUERY --format=csv,noheader,nounits`.

    A line with words in place of numbers (a GPU that fell off the bus, or must be reset, or a part of one) is no GPU.
    """
    rows = (_row(line) for line in text.splitlines())
    return [
        {"index": int(row[0]), "uuid": row[1], "name": row[2], "memory_mib": int(row[3])} for row in rows if _works(row)
    ]


def gpu_fault(stdout: str, stderr: str = "", returncode: int = 0) -> str:
    """nvidia-smi's text about faulty GPUs and its own errors; "" without a fault.

    Args:
        stdout: its output for GPU_QUERY.
        stderr: its errors.
        returncode: its exit code.
    """
    lines = [line.strip() for line in stdout.splitlines() if line.strip() and not _works(_row(line))]
    lines += [line.strip() for line in stderr.splitlines() if line.strip()]
    if not lines and returncode:
        lines = [f"nvidia-smi exited with {returncode}"]
    return _joined(lines)


def gpu_load(text: str) -> list[dict[str, int]]:
    """GPU load from `nvidia-smi --query-gpu=index,utilization.gpu,memory.used --format=csv,noheader,nounits`."""
    found = []
    for line in text.splitlines():
        parts = _row(line)
        if len(parts) < 3 or not parts[0].isdigit() or _ill(parts):
            continue
        found.append(
            {
                "index": int(parts[0]),
                "utilization_percent": int(parts[1]) if parts[1].isdigit() else 0,
                "memory_used_mib": int(parts[2]) if parts[2].isdigit() else 0,
            }
        )
    return found


def load_fault(stdout: str, stderr: str = "", returncode: int = 0) -> str:
    """As `gpu_fault`, for LOAD_QUERY. A value that a GPU does not report (`[N/A]`, as with MIG) is no fault."""
    lines = []
    for line in stdout.splitlines():
        parts = _row(line)
        if line.strip() and (len(parts) < 3 or not parts[0].isdigit() or _ill(parts)):
            lines.append(line.strip())
    lines += [line.strip() for line in stderr.splitlines() if line.strip()]
    if not lines and returncode:
        lines = [f"nvidia-smi exited with {returncode}"]
    return _joined(lines)


def _row(line: str) -> list[str]:
    return [part.strip() for part in line.split(",")]


def _works(row: list[str]) -> bool:
    """A whole line about a whole GPU: its memory is a number, and no field shows a fault."""
    return (
        len(row) == 4
        and row[0].isdigit()
        and row[1].startswith("GPU-")
        and bool(row[2])
        and not _ill(row)
        and row[3].isdigit()
        and int(row[3]) > 0
    )


def _ill(row: list[str]) -> bool:
    """`[Unknown Error]`, `[GPU is lost]`, `[GPU requires reset]`, `ERR!`: but not a value that it does not report."""
    words = [field for field in row if field.startswith("[") or field == "ERR!"]
    return any(word.lower() not in _UNTOLD for word in words)


def _joined(lines: list[str]) -> str:
    """The lines without repetitions, cut to FAULT_MAX."""
    return "; ".join(dict.fromkeys(lines))[:FAULT_MAX]


def gpu_minor(text: str) -> tuple[str, int] | None:
    """(UUID, device minor) from /proc/driver/nvidia/gpus/*/information; None when one is missing."""
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


def plain(field: str) -> str:
    """A field of mountinfo without the kernel's escapes."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field)
