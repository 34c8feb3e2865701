"""A cloud takes a spot machine back: its job is told, requeued, and goes on on another, rented before the end."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from deploy.sandbox.clouds.ledger import RentedMachine
from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

JOB = """\
#SBATCH --requeue
#SBATCH --signal=B:USR1@60
trap 'scontrol update JobId=$SLURM_JOB_ID Comment=saved' USR1
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then exit 0; fi
while :; do sleep 0.2; done
"""
"""Writes its checkpoint at the signal, and goes on from there when it is started again."""


@pytest_asyncio.fixture(loop_scope="session")
async def spot(lab: Lab) -> AsyncIterator[Lab]:
    """The cluster, whose pool takes nothing but spot machines."""
    text = lab.settings_with()
    text = text.replace('spot = "never"', 'spot = "only"').replace(
        "[providers.aws]\n", "[providers.aws]\nspot = true\n"
    )
    await lab.write_settings(text)
    await lab.restart_meshd()  # for the change in providers
    yield lab
    await lab.reset()
    await lab.restart_meshd()


def of_slot(lab: Lab, machine: str) -> RentedMachine:
    (found,) = [one for one in lab.ledger() if one.token == machine]
    return found


async def test_a_job_is_told_and_goes_on_elsewhere(spot: Lab, figure: Callable[[str], None]) -> None:
    lab = spot
    await lab.have(1)
    ((slot, row),) = (await lab.by_slot()).items()
    first = of_slot(lab, row["machine"])
    assert first.spot
    after = await lab.last_event()
    job = await lab.sbatch(JOB)
    assert await lab.running(job) == slot

    lab.cluster.clouds.clouds["aws"].ledger.notice(first.id, 110)
    noticed_at = first.preempts_at

    async def told() -> bool:
        return (await lab.job(job)).get("Comment") == "saved"

    await lab.until(told, "the job got the signal that it asked for")

    async def shown() -> bool:
        return bool((await lab.nodes()).get(row["machine"], {}).get("unfit") == "spot_notice")

    await lab.until(shown, "the node is unfit for its notice")
    assert "DRAIN" in (await lab.slots())[slot].states
    assert re.search("takes it back", (await lab.slots())[slot].reason)
    await lab.start_again(job)
    done = await lab.completed(job)
    assert done["Restarts"] == "1"
    # One for the target; Slurm may have powered up another slot for the job before that was there.
    later = sorted((one for one in lab.ledger() if one.created_at > first.created_at), key=lambda one: one.created_at)
    assert len(later) in (1, 2)
    second = later[0]

    async def over() -> bool:
        return first.ended_at is not None

    await lab.until(over, "the first machine has ended")
    assert first.ended_at is not None
    assert noticed_at is not None
    assert second.created_at < first.ended_at <= noticed_at, "the other was rented while the first still ran"
    figure(f"the other machine was ordered {(first.ended_at - second.created_at).total_seconds():.0f} s before the end")
    events = [one for one in await lab.events(after) if one["kind"] == "spot_notice"]
    assert len(events) >= 4, "the notice, that jobs are told, the signal, the requeue"

    async def well() -> bool:
        phases = [row["phase"] for row in (await lab.nodes()).values()]
        return set(phases) == {"ready"} and len(phases) == len(later)

    await lab.until(well, "what was rented is ready")
