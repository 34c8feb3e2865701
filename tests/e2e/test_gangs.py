"""A gang: several machines by one create call, each of which finds out who it is."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from deploy.sandbox.clouds.ledger import RentedMachine
from meshd.contract.faults import CloudFault, FaultKind
from tests.e2e.lab import GPU, Lab
from tests.sent import script_of

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

GANG = 4


def calls(lab: Lab, cloud: str) -> int:
    """How many create calls the cloud had."""
    return lab.cluster.clouds.clouds[cloud].faults.calls("launch")


async def one_call_makes_four(lab: Lab, cloud: str, figure: Callable[[str], None], *where: str) -> list[RentedMachine]:
    before = calls(lab, cloud)
    up = await lab.scale(GANG, *where)
    figure(f"{cloud}: {GANG} machines READY in {up['elapsed_s']:.1f} s with {calls(lab, cloud) - before} create call")
    assert calls(lab, cloud) - before == 1
    machines = lab.alive(cloud)
    assert len(machines) == GANG
    assert len({script_of(machine) for machine in machines}) == 1, "all have the same user data"
    assert {machine.token for machine in machines} == set(await lab.nodes())
    for machine in machines:  # the cloud's ledger knows which machine got which name
        assert (await lab.inside(machine.name, "cat", "/var/lib/meshd-node/machine")).strip() == machine.token
        assert (
            json.loads(await lab.inside(machine.name, "cat", "/etc/meshd-node/join.json"))["machine"] == machine.token
        )
    said = await lab.srun(f"-N{GANG}", "--gpus-per-node=1", "nvidia-smi", "-L")
    assert len(set(GPU.findall(said))) == GANG, said
    return machines


async def test_a_gang_on_ec2(lab: Lab, figure: Callable[[str], None]) -> None:
    await one_call_makes_four(lab, "aws", figure)
    down = await lab.scale(0)
    assert down["elapsed_s"] > 0
    assert lab.alive() == []


async def test_a_gang_on_gce(booted: Lab, lab: Lab, figure: Callable[[str], None]) -> None:
    async with booted.enabled("gce") as cluster:
        await one_call_makes_four(cluster, "gce", figure, "--provider", "gce")
        await cluster.scale(0, "--provider", "gce")
        assert cluster.alive("gce") == []


async def test_a_gang_with_a_lost_answer_is_made_once(lab: Lab) -> None:
    before = calls(lab, "aws")
    lab.fault(CloudFault(FaultKind.CUT_AFTER, "launch"))
    await lab.scale(GANG)
    assert len(lab.alive()) == GANG
    assert calls(lab, "aws") - before in {1, 2}, "the listing, or the same call again"


async def test_of_a_gang_that_does_not_fit_nothing_is_rented_and_then_a_part(lab: Lab) -> None:
    """A target takes a part of its machines, but only when no place could give all."""
    lab.room(aws=GANG - 1)
    after = await lab.last_event()
    try:
        await lab.want(GANG)

        async def refused() -> bool:
            return any("nothing was rented" in event["text"] for event in await lab.events(after))

        await lab.until(refused, "the gang is refused")
        assert lab.ledger() == [] or all(machine.ended_at is not None for machine in lab.ledger())

        async def part() -> bool:
            return len(lab.alive()) == GANG - 1

        await lab.until(part, "a part of it is rented", 120)
    finally:
        lab.room(aws=None)


async def test_a_machine_that_is_another_instance_does_not_join(lab: Lab) -> None:
    """Its metadata service says another id than its cloud: as if somebody claimed to be this machine."""
    await lab.want(2)

    async def made() -> list[RentedMachine] | None:
        return lab.alive() if len(lab.alive()) == 2 else None

    liar, honest = await lab.until(made, "the cloud has made both")
    liar.metadata["told_id"] = "i-0123456789abcdef0"

    async def one_ready() -> bool:
        return (await lab.nodes()).get(honest.token, {}).get("phase") == "ready"

    await lab.until(one_ready, "the other machine is ready")

    async def told() -> bool:
        return "join_token_refused" in await lab.problem_codes(liar.token)

    await lab.until(told, "people are told of the one that is refused")
    assert (await lab.nodes())[liar.token]["phase"] in {"booting", "joining"}, "it is refused, and nothing more"
    assert (await lab.joined_slots()) == {(await lab.nodes())[honest.token]["slot"]}
