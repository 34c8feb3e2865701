"""I/O: the files of Slurm's settings of this machine alone, which libslurmconf appends to what slurmd gets."""

from __future__ import annotations

from collections.abc import Mapping

from . import kernel, slurm_local
from .errors import NodeError, NotPossible
from .files import write_if_changed
from .parse import version
from .paths import Paths
from .tools import run

VERSION_TIMEOUT_S = 15.0


class SlurmLocal:
    """This machine's own settings.

    Attributes:
        lacks: what a job lacks here that other nodes have, as codes; None before `put`.
    """

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self.lacks: list[str] | None = None

    def put(self, head: Mapping[str, str]) -> dict[str, str]:
        """Write the files, or remove them where the head's settings suit this machine.

        Args:
            head: settings in force at the head; empty where the head sent none.

        Returns:
            The variables of slurmd's environment that have it read them.

        Raises:
            NotPossible: slurmd would not run with the head's settings, and the library that changes them is missing.
        """
        found = kernel.look(self._paths)
        release = (0, 0) if found.cgroups else _release()  # with control groups nothing depends on it
        settings = slurm_local.decide(found, head, release) if head else {}
        for name in (slurm_local.SLURM_CONF, slurm_local.CGROUP_CONF):
            path = self._paths.slurm_local / name
            if name in settings:
                write_if_changed(path, slurm_local.text(settings[name]).encode())
            else:
                path.unlink(missing_ok=True)
        self.lacks = slurm_local.lost(settings, head)
        library = self._paths.slurmconf_library
        if not settings:
            return {}
        if library.is_file():
            return {"LD_PRELOAD": str(library), "MESHD_SLURM_LOCAL": str(self._paths.slurm_local)}
        if slurm_local.needed(settings):
            asked = ", ".join(f"{key}={head.get(key, '')}" for key in sorted(settings[slurm_local.SLURM_CONF]))
            raise NotPossible(
                f"the head's settings of Slurm ({asked}) need what this machine's kernel does not allow, and "
                f"{library}, which changes them here, is missing",
                "use an image with meshd's pod files",
                "slurmd",
            )
        return {}


def _release() -> tuple[int, int]:
    """slurmd's release, e.g. (24, 11); (0, 0) when not known."""
    try:
        numbers = version(run(["slurmd", "-V"], VERSION_TIMEOUT_S).stdout).split(".")
        return int(numbers[0]), int(numbers[1])
    except (NodeError, ValueError, IndexError):
        return 0, 0
