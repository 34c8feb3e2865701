"""For `meshctl doctor`: can a job open GPUs that are not its own?"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshd.api.schema import CheckRow
from meshd.codes import CheckName, ProblemCode
from meshd.config import PoolSettings
from meshd.daemon.reporting import ok, warn
from meshd.slurm.client import SlurmClient
from meshd.slurm.gpu_devices import CURE, OPEN

NAME = CheckName.GPU_DEVICES


class GpuDevices:
    """The check.

    Args:
        slurm: what slurmctld has in force is asked for.
        pools: those of the settings.
    """

    def __init__(self, slurm: SlurmClient, pools: Callable[[], Mapping[str, PoolSettings]]) -> None:
        self._slurm = slurm
        self._pools = pools

    async def __call__(self) -> CheckRow:
        """One row. Raises SlurmError."""
        if not any(pool.gpus_per_node for pool in self._pools().values()):
            return ok(NAME, "no pool has GPUs")
        if await self._slurm.gpus_closed():
            return ok(NAME, "a job can open its own GPUs alone")
        return warn(NAME, ProblemCode.GPUS_OPEN, OPEN, CURE)
