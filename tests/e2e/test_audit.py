"""The audit of the whole cluster: nothing leaked while it works, a forgotten volume is found, and cron learns of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from meshd.cli.errors import ExitCode
from meshd.contract.faults import CloudFault, FaultKind, When
from meshd.provider_api import CLUSTER_TAG, MACHINE_TAG
from tests.e2e.lab import USER, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


@pytest_asyncio.fixture(loop_scope="session")
async def clouds(lab: Lab) -> AsyncIterator[Lab]:
    """The cluster; afterwards nothing lies there but what was there before."""
    yield lab
    lab.cluster.clouds.ec2.things.clear()


async def audit(lab: Lab) -> tuple[int, dict[str, Any]]:
    ran = await lab.meshctl("audit", "-o", "json", timeout_s=120)
    return ran.returncode, json.loads(ran.stdout)


async def test_what_works_is_accounted_for_and_a_forgotten_volume_is_found(clouds: Lab) -> None:
    lab = clouds
    await lab.have(1)
    (row,) = (await lab.by_slot()).values()

    async def settled() -> bool:  # devices of machines that other scenarios had are being deleted
        return (await audit(lab))[0] == ExitCode.OK

    await lab.until(settled, "all is accounted for")
    _, view = await audit(lab)
    verdicts = {(one["kind"], one["verdict"]) for one in view["rows"]}
    assert ("machine", "ours") in verdicts
    assert not {"leaked", "unknown"} & {verdict for _, verdict in verdicts}

    gone = "lab-h100-1-aaaaaa"
    tags = {CLUSTER_TAG: "lab", MACHINE_TAG: gone, "Name": gone}
    volume = lab.cluster.clouds.ec2.things.add("volume", "us-east-1", tags=tags, thing_id="vol-0123456789abcdef0")
    code, view = await audit(lab)
    leaks = [one for one in view["rows"] if one["verdict"] == "leaked"]
    assert code == ExitCode.LEAKED
    assert [(one["id"], one["name"], one["owner"]) for one in leaks] == [(volume.id, gone, "ours")]
    assert volume.id in leaks[0]["cure"]

    lab.cluster.clouds.ec2.things.clear()
    lab.cluster.clouds.clouds["aws"].faults.inject(CloudFault(FaultKind.ERROR_BEFORE, "billed", When.ALWAYS))
    code, view = await audit(lab)
    assert code == ExitCode.NOT_LISTED and view["unknown"] and not view["leaked"]
    lab.cluster.clouds.clouds["aws"].faults.clear()
    assert (await lab.meshctl("audit", user=USER)).returncode == ExitCode.DENIED
    assert (await lab.by_slot())[row["slot"]]["machine"] == row["machine"], "an audit touches nothing"
