"""Machines that the journal does not know: ended when nobody wants them, adopted when they are ours and at work."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from deploy.sandbox.network import GATEWAY
from deploy.sandbox.vendors import VENDORS
from tests.e2e.lab import WAIT_FOR_WORD, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

GRACE_S = 6.0
RENT = f"""
import boto3
ec2 = boto3.client("ec2", region_name="us-east-1", endpoint_url="http://{GATEWAY}:{VENDORS["aws"].port}",
                   aws_access_key_id="AKIASANDBOXSANDBOX00", aws_secret_access_key="sandbox-secret")
image = ec2.describe_images()["Images"][0]["ImageId"]
made = ec2.run_instances(ImageId=image, InstanceType="p5.4xlarge", MinCount=1, MaxCount=1, UserData="#!/bin/sh\\n",
    TagSpecifications=[{{"ResourceType": "instance", "Tags": [
        {{"Key": "Name", "Value": "made-by-hand"}}, {{"Key": "meshd-cluster", "Value": "lab"}}]}}])
print(made["Instances"][0]["InstanceId"])
"""


async def test_a_machine_made_by_somebody_else_with_our_tag_is_ended(lab: Lab, figure: Callable[[str], None]) -> None:
    await lab.timing(orphan_grace_s=GRACE_S)
    event = await lab.last_event()
    made = (await lab.head.run("/opt/meshd/venv/bin/python", "-", stdin=RENT.encode())).text
    (machine,) = [machine for machine in lab.ledger() if machine.id == made]

    async def ended() -> bool:
        return not lab.alive()

    await lab.until(ended, "the orphan is ended")
    assert machine.ended_at is not None
    took = (machine.ended_at - machine.created_at).total_seconds()  # by the cloud's clock: it may end as we look away
    figure(f"ended {took:.1f} s after it was made, with a grace of {GRACE_S:g} s")
    assert took >= GRACE_S - 1
    (told,) = [e["text"] for e in await lab.events(event) if e["kind"] == "orphan"]
    assert made in told
    assert "no pool needs it" in told


@pytest.mark.any_machines
async def test_a_lost_journal(lab: Lab, figure: Callable[[str], None]) -> None:
    await lab.timing(orphan_grace_s=GRACE_S)
    await lab.have(2)
    before = await lab.by_slot()
    job = await lab.sbatch(WAIT_FOR_WORD)
    slot = await lab.running(job)
    busy = before[slot]["machine"]
    pid = await lab.inside(busy, "pgrep", "-x", "slurmd")

    await lab.head.shell("systemctl stop meshd; rm -f /var/lib/meshd/journal.db*; systemctl start meshd", timeout_s=90)
    began = time.monotonic()
    after = await lab.ready(2)
    adopted = {e["machine"] for e in await lab.events(0) if "the journal does not know it" in e["text"]}
    assert adopted == {row["machine"] for row in before.values()}
    figure(f"both machines adopted and READY {time.monotonic() - began:.1f} s after meshd's start without a journal")

    assert {s: row["machine"] for s, row in after.items()} == {s: row["machine"] for s, row in before.items()}
    assert {s: row["address"] for s, row in after.items()} == {s: row["address"] for s, row in before.items()}
    assert {s: row["usd_per_hour"] for s, row in after.items()} == {s: row["usd_per_hour"] for s, row in before.items()}

    async def job_is_shown() -> bool:
        return (await lab.by_slot())[slot]["jobs"] == [job]

    await lab.until(job_is_shown, "meshd has read Slurm again")
    assert (await lab.job(job))["Restarts"] == "0"
    assert await lab.inside(busy, "pgrep", "-x", "slurmd") == pid, "slurmd was not touched"
    assert len(lab.alive()) == 2
    (free,) = set(after) - {slot}
    assert await lab.srun("-N1", f"--nodelist={free}", "printenv", "SLURMD_NODENAME") == free

    await lab.inside(busy, "touch", f"/tmp/end-{job}")
    await lab.completed(job)
