"""GPU device files that jobs may open, and the GPUs' load."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import parse
from .errors import NodeError, ToolMissing
from .facts import NVIDIA_TIMEOUT_S
from .tools import run

LOAD_INTERVAL_S = 15.0


def open_devices(dev: Path) -> list[str]:
    """Let all users open the GPUs: Slurm's device cgroup, not file modes, assigns GPUs to jobs.

    Returns:
        The names of the files whose mode changed.
    """
    changed = []
    names = [f"nvidia{entry.name[6:]}" for entry in dev.glob("nvidia[0-9]*") if entry.name[6:].isdigit()]
    for name in [*sorted(names), "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]:
        path = dev / name
        with suppress(OSError):  # missing, or a container's, which it may not change
            if path.stat().st_mode & 0o666 != 0o666:
                path.chmod(0o666)
                changed.append(name)
    return changed


class LoadWatch:
    """Reads the GPUs' load every 15 s in a thread, since nvidia-smi hangs when a GPU is faulty."""

    def __init__(self) -> None:
        self._seen: list[dict[str, Any]] = []
        self._fault = ""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="gpu load", daemon=True)

    def start(self) -> None:
        """Start the thread, once. It ends with the process."""
        self._thread.start()

    def last(self) -> tuple[list[dict[str, Any]], str]:
        """The last load of each GPU, and the fault of GPUs without one ("" without a fault)."""
        with self._lock:
            return list(self._seen), self._fault

    def look(self) -> None:
        """Read the load once."""
        argv = ["nvidia-smi", f"--query-gpu={parse.LOAD_QUERY}", "--format=csv,noheader,nounits"]
        seen: list[dict[str, Any]] = []
        fault = ""
        try:
            result = run(argv, NVIDIA_TIMEOUT_S, check=False)
            seen = list(parse.gpu_load(result.stdout))
            fault = parse.load_fault(result.stdout, result.stderr, result.returncode)
        except ToolMissing:
            pass  # it may be installed later
        except (NodeError, OSError) as error:
            fault = str(error)
        with self._lock:
            self._seen, self._fault = seen, fault

    def _watch(self) -> None:
        while True:
            self.look()
            time.sleep(LOAD_INTERVAL_S)
