"""GPUs that any job can open are told of."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from meshd.config import PoolSettings
from meshd.daemon.slurm.report import GpuDevices
from meshd.runtime.run import Result
from meshd.slurm.client import SlurmClient
from tests.live import live_settings

CLOSED = """\
TaskPlugin              = task/affinity,task/cgroup

Cgroup Support Configuration:
CgroupPlugin            = autodetect
ConstrainDevices        = yes
"""


@pytest.mark.parametrize(
    ("config", "gpus", "status"),
    [
        (CLOSED, 1, "ok"),
        (CLOSED.replace("= yes", "= no"), 1, "warn"),
        (CLOSED.replace(",task/cgroup", ""), 1, "warn"),
        (CLOSED.replace("autodetect", "disabled"), 1, "warn"),
        ("TaskPlugin = task/none\n", 1, "warn"),
        ("TaskPlugin = task/none\n", 0, "ok"),
    ],
)
async def test_the_doctor(config: str, gpus: int, status: str) -> None:
    async def run(argv: Sequence[str], **_: object) -> Result:
        return Result(tuple(argv), 0, config, "")

    pool = PoolSettings(gpu="h100", gpus_per_node=gpus) if gpus else PoolSettings()
    row = await GpuDevices(SlurmClient(run, 1.0), live_settings(pools={"a": pool}))()
    assert (row.status, bool(row.cure)) == (status, status == "warn")
