"""What an agent says of its cloud's notices: journaled, the offer cools down, jobs are told once and requeued."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from meshd.api.node_schema import PollIn, SpotNoticeIn
from meshd.daemon.nodes.service import NodeService
from meshd.daemon.nodes.spot_notices import spot_cloud
from meshd.model import plan as p
from meshd.model.cooldown import CooldownKey
from meshd.model.machine import Machine, Phase
from tests.node_room import node_parts
from tests.unit.daemon.small import Small
from tests.unit.daemon.standins import MungeKey
from tests.unit.worlds import OFFER, machine

SPOT = machine(Phase.READY, offer=replace(OFFER, spot=True))
LASTING = machine(Phase.READY, index=2)


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Small]:
    world = Small(tmp_path, SPOT, LASTING)
    yield world
    await world.executor.aclose(1)
    world.journal.close()


@pytest.fixture
def service(small: Small) -> NodeService:
    return node_parts(small.machine_store, munge_key=cast("Any", MungeKey())).service


async def told(service: NodeService, m: Machine, *notices: tuple[str, float | None] | None) -> None:
    found = None if notices == (None,) else tuple(SpotNoticeIn(kind=k, ends_in_s=s) for k, s in cast("Any", notices))
    await service.poll(m.name, PollIn(phase="serving", munge_ok=True, spot_notices=found), 0.0)


def kinds(small: Small) -> list[str]:
    return [event.kind for event in small.journal.events() if event.kind == "spot_notice"]


async def test_a_notice_is_journaled_once_and_its_offer_cools_down(small: Small, service: NodeService) -> None:
    now = small.machine_store.now()
    await told(service, SPOT)
    assert small.get(SPOT.name).preempted_at is None
    await told(service, SPOT, ("preempted", 120.0))
    assert small.get(SPOT.name).preempted_at == now + timedelta(seconds=120)
    cooldown = small.journal.last_cooldown(CooldownKey.of_offer(SPOT.offer))
    assert cooldown is not None
    assert cooldown.until > now
    await told(service, SPOT, ("preempted", 119.0))
    await told(service, SPOT, None)
    assert small.get(SPOT.name).preempted_at == now + timedelta(seconds=120), "an agent that starts again knows nothing"
    assert kinds(small) == ["spot_notice"]
    await told(service, SPOT, ("preempted", 20.0))
    assert small.get(SPOT.name).preempted_at == now + timedelta(seconds=20)
    await told(service, SPOT)
    assert small.get(SPOT.name).preempted_at is None
    assert len(kinds(small)) == 3


async def test_what_ends_nothing_is_shown_once(small: Small, service: NodeService) -> None:
    for _ in range(3):
        await told(service, SPOT, ("rebalance", None), ("kind_of_a_newer_agent", 3.0))
    assert small.get(SPOT.name).preempted_at is None
    assert kinds(small) == ["spot_notice"]


async def test_a_machine_that_is_no_spot_machine_cannot_be_taken_back(small: Small, service: NodeService) -> None:
    await told(service, LASTING, ("preempted", 1.0))
    assert small.get(LASTING.name).preempted_at is None
    assert (spot_cloud(SPOT), spot_cloud(LASTING), spot_cloud(replace(SPOT, provider="runpod"))) == ("aws", "", "")


async def test_jobs_are_told_and_requeued(small: Small) -> None:
    small.executor.begin(p.SignalJobs(SPOT.name, "it ends", SPOT.slot, ("7", "8")))
    await small.settle()
    assert small.get(SPOT.name).jobs_signalled_at is not None
    small.executor.begin(p.RequeueJobs(SPOT.name, "it ends", SPOT.slot, ("7",)))
    await small.settle()
    assert small.slurm.orders == ["signal 7", "signal 8", "requeue 7"]
    assert len(kinds(small)) == 4


@pytest.mark.parametrize("wrong", [{"kind": "A"}, {"kind": "a" * 41}, {"kind": "a", "ends_in_s": 1e6}, {}])
def test_what_an_agent_says_has_bounds(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PollIn(spot_notices=(wrong,))
