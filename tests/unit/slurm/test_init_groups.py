"""LaunchParameters: jobs have the groups of their node, where all nodes are meshd's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshd.slurm.conf import parse
from meshd.slurm.init.plan import plan_init
from meshd.slurm.init.types import InitInput
from meshd.slurm.nodes import PoolLine

SITE = "ClusterName=lab\nSlurmctldHost=head(100.64.0.1)\nSlurmUser=slurm\n"
HAVE = InitInput("lab", "head", "100.64.0.1", SITE, pools=(PoolLine("h100", "", 4, "h100", 8, 8, 1024),))


@pytest.mark.parametrize(
    ("conf", "becomes"),
    [
        ("", "disable_send_gids"),
        ("NodeName=head CPUs=4\n", "disable_send_gids"),
        ("LaunchParameters=test_exec\n", "test_exec,disable_send_gids"),
        ("LaunchParameters=Disable_Send_GIDs\n", "Disable_Send_GIDs"),
        ("LaunchParameters=enable_nss_slurm\n", "enable_nss_slurm"),
        ("NodeName=own[1-3] CPUs=4\n", None),
    ],
)
def test_when_it_is_set(conf: str, becomes: str | None) -> None:
    plan = plan_init(replace(HAVE, slurm_conf=SITE + conf))
    new = next((change.new for change in plan.files if change.path.name == "slurm.conf"), SITE + conf)
    values = [value for line in parse(new).lines if (value := line.value("LaunchParameters"))]
    assert (values[-1] if values else None) == becomes
