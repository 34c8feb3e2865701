"""`kill -9` of meshd while machines are rented, with answers of the cloud lost besides: none is lost, none doubled."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import pytest

from meshd.contract.faults import CloudFault, FaultKind
from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

ALIVE = {"pending", "running"}
MACHINES = 4


async def killed_at(lab: Lab, phase: str) -> str:
    """Kill meshd as soon as a machine has got to a phase; which one was seen."""

    async def there() -> str | None:
        phases = Counter(row["phase"] for row in (await lab.nodes()).values())
        return phase if phases[phase] or phases["ready"] == MACHINES else None

    seen = await lab.until(there, f"a machine is {phase}")
    await lab.kill_meshd()
    return seen


async def test_kills_during_a_launch(lab: Lab, figure: Callable[[str], None]) -> None:
    """One order's answer is cut off, another one's is an error: the cloud has taken both."""
    ever = len(lab.ledger())
    event = await lab.last_event()
    for lost in (FaultKind.CUT_AFTER, FaultKind.ERROR_AFTER):
        lab.fault(CloudFault(lost, operation="launch", status=503))
    began = time.monotonic()
    await lab.want(MACHINES)
    pids = {await lab.meshd_pid()}
    # The first while the create calls are on their way, the others spread over what follows.
    await lab.kill_meshd()
    for pause_s in (0.1, 0.4):
        await asyncio.sleep(pause_s)  # a moment, not a condition: each run kills somewhere else
        pids.add(await lab.meshd_pid())
        await lab.kill_meshd()
    for phase in ("joining", "configuring"):
        pids.add(await lab.meshd_pid())
        await killed_at(lab, phase)
    assert len(pids) == 5

    rows = await lab.ready(MACHINES)
    took = time.monotonic() - began
    born = lab.ledger()[ever:]
    alive = [machine for machine in born if machine.life in ALIVE]
    assert {machine.token for machine in alive} == {row["machine"] for row in rows.values()}
    assert len(alive) == MACHINES, born
    assert max(Counter(machine.token for machine in born).values()) == 1, "a machine was made twice"
    if len(born) != MACHINES:
        raise AssertionError(f"more was rented than wanted: {born}\n{await lab.evidence()}")
    assert len(await lab.joined_slots()) == MACHINES
    said = await lab.srun(f"-N{MACHINES}", "--gpus-per-node=1", "hostname")
    assert len(set(said.split())) == MACHINES
    unclear = sum(e["kind"] == "unclear" for e in await lab.events(event))
    figure(f"5 kills, {unclear} unclear answers: {MACHINES} of {MACHINES} READY after {took:.1f} s, none doubled")


@pytest.mark.any_machines
async def test_a_kill_while_machines_leave(lab: Lab, figure: Callable[[str], None]) -> None:
    await lab.have(2)
    began = time.monotonic()
    await lab.want(0)
    await lab.kill_meshd()

    async def terminating() -> bool:
        return all(row["phase"] == "terminating" for row in (await lab.nodes()).values())

    await lab.until(terminating, "both are being ended")
    await lab.kill_meshd()
    await lab.nothing_left()
    figure(f"2 machines given back over 2 kills in {time.monotonic() - began:.1f} s")


@pytest.mark.any_machines
async def test_the_service_manager_brings_meshd_back(lab: Lab, figure: Callable[[str], None]) -> None:
    before = await lab.meshd_pid()
    await lab.head.run("systemctl", "kill", "-s", "KILL", "meshd")
    began = time.monotonic()

    async def back() -> bool:
        return await lab.meshd_pid() not in {before, "0"} and (await lab.meshctl("status")).returncode == 0

    await lab.until(back, "another meshd answers")
    figure(f"answers {time.monotonic() - began:.1f} s after kill -9")
