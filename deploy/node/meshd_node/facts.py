"""Collects the facts about this machine for the join: hardware, versions, ids."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import VERSION, parse, pod_sshd
from .bounded import Hangs
from .console import say
from .errors import NodeError, ToolMissing
from .kind import may_change_network
from .limits import limited
from .paths import Paths
from .tailscale import Tailscale
from .tools import find, run

NVIDIA_TIMEOUT_S = 60.0
"""The first call after boot may load the driver for each GPU."""

LOOKS_S = NVIDIA_TIMEOUT_S + 15.0


def gather(
    paths: Paths, clock_skew_s: Callable[[], float], *, systemd: bool, tun: bool, looks: Looks | None = None
) -> dict[str, Any]:
    """All facts for the join, in the form of the head's API.

    Missing programs are facts too: without slurmd its version is "" and the shape is all zero; without nvidia-smi
    there are no GPUs.

    Args:
        paths: the machine's paths.
        clock_skew_s: asks the head for the time, while other threads read the hardware.
        systemd: whether systemd runs here. Without it this is a container, whose limits count, not its host's hardware.
        tun: whether tailscaled has a TUN device.
        looks: the looks at the hardware that were begun; None begins them.

    Raises:
        HeadUnreachable: the head sent no time.
        ToolTimeout, ToolFailed, Hangs: slurmd or nvidia-smi is installed and broken.
        NotPossible: slurmd -C did not print its usual line.
    """
    looks = looks or Looks(paths, systemd=systemd)
    skew_s = clock_skew_s()
    found = looks.results()
    found["gpus"], found["gpu_fault"] = found["gpus"]
    return {
        **found,
        "agent_version": VERSION,
        "os": parse.os_name(_text(paths.os_release))[:200],
        "arch": os.uname().machine,
        "clock_skew_s": round(skew_s, 3),
        "machine_id": machine_id(paths) if systemd else "",
        "systemd": systemd,
        "tun": tun,
        "firewall": may_change_network(paths.proc),
        "ssh_host_key": ssh_host_key(paths, systemd=systemd),
    }


def ssh_host_key(paths: Paths, *, systemd: bool) -> str:
    """Type and key of the ssh server that the head's root comes in by; "" where there is none."""
    if systemd or not paths.pod_services.is_dir():
        return " ".join(_text(paths.ssh_host_key).split()[:2])[:1000]
    try:
        return pod_sshd.host_key(paths)
    except (NodeError, OSError) as error:
        say(f"there will be no ssh server: {error}")
        return ""


class Looks:
    """Looks at the hardware and at what is installed, all at once, each in a thread.

    Importing concurrent.futures would take longer than they do.

    Args:
        paths, systemd: as for `gather`.
    """

    def __init__(self, paths: Paths, *, systemd: bool) -> None:
        self._threads: list[threading.Thread] = []
        self._found: dict[str, Any] = {}
        self._failed: list[NodeError] = []
        self._begin("shape", lambda: _shape() if systemd else limited(_shape(), paths))
        self._begin("gpus", lambda: gpus(paths))
        self._begin("slurmd_version", _slurmd_version)
        self._begin("tailscale_version", lambda: _tailscale_version(paths))

    def _begin(self, name: str, work: Callable[[], Any]) -> None:
        thread = threading.Thread(target=self._look, args=(name, work), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def results(self, within_s: float = LOOKS_S) -> dict[str, Any]:
        """Wait for all results. Raises the first failure, or Hangs for a call that does not end."""
        deadline = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        hanging = [thread.name for thread in self._threads if thread.is_alive()]
        if hanging and not self._failed:
            raise Hangs(f"the look at {hanging[0]}")
        if self._failed:
            raise self._failed[0]
        return self._found

    def _look(self, name: str, work: Callable[[], Any]) -> None:
        try:
            self._found[name] = work()
        except NodeError as error:
            self._failed.append(error)
        except OSError as error:  # a process cannot be started, or a file cannot be read
            self._failed.append(NodeError(f"the look at {name} failed: {error}"))


def gpus(paths: Paths) -> tuple[list[dict[str, Any]], str]:
    """The working GPUs, each with its device file ("" when missing), and nvidia-smi's text about the others.

    Raises:
        ToolTimeout: nvidia-smi hangs.
    """
    try:
        argv = ["nvidia-smi", f"--query-gpu={parse.GPU_QUERY}", "--format=csv,noheader,nounits"]
        result = run(argv, NVIDIA_TIMEOUT_S, check=False)
    except ToolMissing:
        return [], ""
    found, fault = parse.gpus(result.stdout), parse.gpu_fault(result.stdout, result.stderr, result.returncode)
    files = device_files(paths.dev)
    minors = _minors(paths.proc / "driver/nvidia/gpus")
    for place, gpu in enumerate(found):
        minor = minors.get(gpu["uuid"])
        if minor is None and len(files) == len(found):
            minor = files[place]
        if minor is None:
            minor = gpu["index"]
        gpu["device"] = f"/dev/nvidia{minor}" if minor in files else ""
    return found, fault


def device_files(dev: Path) -> list[int]:
    """Minor numbers of the /dev/nvidiaN files, ascending."""
    names = [entry.name[len("nvidia") :] for entry in dev.glob("nvidia[0-9]*")]
    return sorted(int(name) for name in names if name.isdigit())


def machine_id(paths: Paths) -> str:
    """A digest of /etc/machine-id; "" where there is none yet. systemd wants the id itself to stay on the machine."""
    text = _text(paths.machine_id).strip()
    known = text and text != "uninitialized"
    return hashlib.sha256(f"meshd:{text}".encode()).hexdigest()[:16] if known else ""


def missing_programs() -> list[str]:
    """The programs that a node needs and that are not installed."""
    return [program for program in ("slurmd", "munged", "munge", "unmunge") if not find(program)]


def _minors(directory: Path) -> dict[str, int]:
    pairs = [parse.gpu_minor(_text(entry)) for entry in directory.glob("*/information")]
    return dict(pair for pair in pairs if pair is not None)


def _shape() -> dict[str, int]:
    try:
        return parse.slurmd_c(run(["slurmd", "-C"], 15.0).stdout)
    except ToolMissing:
        return dict.fromkeys(
            ("cpus", "boards", "sockets_per_board", "cores_per_socket", "threads_per_core", "memory_mib"), 0
        )


def _slurmd_version() -> str:
    try:
        return parse.version(run(["slurmd", "-V"], 15.0).stdout)
    except NodeError:
        return ""


def _tailscale_version(paths: Paths) -> str:
    """That of tailscaled, from itself: the program `tailscale` takes much longer to start than to answer."""
    try:
        return parse.version(str(Tailscale(paths.tailscaled_socket).status().get("Version", "")))
    except NodeError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
