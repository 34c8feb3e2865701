"""For `meshctl doctor`: can a job open GPUs that are not its own?"""

from __future__ import annotations

from meshd.api.schema import CheckRow
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.reporting import ok, warn
from meshd.slurm.client import SlurmClient
from meshd.slurm.gpu_devices import CURE, OPEN

NAME = CheckName.GPU_DEVICES


class GpuDevices:
    """The check.

    Args:
        slurm: what slurmctld has in force is asked for.
        live: the settings, for the pools.
    """

    def __init__(self, slurm: SlurmClient, live: LiveSettings) -> None:
        self._slurm = slurm
        self._live = live

    async def __call__(self) -> CheckRow:
        """One row. Raises SlurmError."""
        if not any(pool.gpus_per_node for pool in self._live.settings.pools.values()):
            return ok(NAME, "no pool has GPUs")
        if await self._slurm.gpus_closed():
            return ok(NAME, "a job can open its own GPUs alone")
        return warn(NAME, ProblemCode.GPUS_OPEN, OPEN, CURE)
