"""What a provider says of itself is acted on, or shown."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from meshd.api import schema as s
from meshd.cli.settings_check import provider_rows
from meshd.config import File, Settings
from meshd.daemon.head_api.offers import offers_view
from meshd.daemon.machines import desired_state as wanted
from meshd.daemon.machines.cloud_steps import UserData
from meshd.daemon.providers.report import check
from meshd.model import plan as p
from meshd.model.desired import Desired, Policy, Pool, Target
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Fresh
from meshd.plan.alternatives import considered
from meshd.plan.placement import usable, why_none
from meshd.plan.provider_capabilities import NO_TUN, description
from meshd.provider_api import MachineKind, ProviderCapabilities, ProviderContext, ProviderName
from providers.runpod.provider import create as create_runpod
from tests.unit.daemon.small import Cloud, Small
from tests.unit.worlds import NOW, OFFER, machine, snapshot

RUNPOD = ProviderName("runpod")
POD = replace(OFFER, provider=RUNPOD, region="US-KS-2", zone="", usd_per_hour=1.0)
PODS = ProviderCapabilities(machine_kind=MachineKind.CONTAINER, tun=False, systemd=False)
POOL = Pool("h100", "h100", 1, 8, ("runpod", "aws"), without_tun=frozenset({"runpod"}))
ONE = Target("h100", 1)


def test_no_capability_that_nobody_reads() -> None:
    own = {"provider_api.py"}
    code = [file for file in Path("meshd").rglob("*.py") if file.name not in own and "contract" not in file.parts]
    texts = [file.read_text() for file in code]
    for field in fields(ProviderCapabilities):
        read = re.compile(rf"(capabilities|can)\.{field.name}\b")
        assert any(read.search(text) for text in texts), field.name


# -- machines without a TUN device ------------------------------------------------------------------------------------


def test_they_are_no_candidates_however_cheap() -> None:
    assert usable([POD, OFFER], POOL, ONE, {}, NOW) == [OFFER]
    assert NO_TUN in why_none([POD], POOL, ONE, {}, NOW)
    assert "pods_have_tun" in why_none([POD], POOL, ONE, {}, NOW)
    notes = {offer.key: note for offer, _, note in considered([POD, OFFER], POOL, ONE, {}, {OFFER.key}, NOW)}
    assert notes[POD.key] == NO_TUN


def test_the_pools_learn_it_from_the_adapters() -> None:
    settings = Settings(
        providers={"aws": {}, "runpod": {}}, pools={"h100": {"gpu": "h100"}, "own": {"gpu": "l4", "providers": ["aws"]}}
    )  # type: ignore[arg-type]
    pods, vms = Cloud(), Cloud()
    pods.capabilities = PODS
    able: Any = {"runpod": pods, "aws": vms}
    pools = wanted.pools(settings, able, NOW, shapes_fixed=False, able=able)
    assert (pools["h100"].without_tun, pools["own"].without_tun) == ({"runpod"}, frozenset())
    policy = wanted.policy(settings.timing, settings.prices, may_change_devices=False, providers=able)
    assert policy.without_tun == {"runpod"}


def test_meshctl_offers_says_so() -> None:
    desired = Desired("lab", {"h100": POOL}, {}, Policy(without_tun=frozenset({"runpod"})))
    seen = snapshot(offers={"runpod": Fresh((POD,), NOW), "aws": Fresh((OFFER,), NOW)})
    view = offers_view(seen, s.OffersQuery(), desired, NOW)
    assert ([row.offer for row in view.offers], view.left_out) == ([OFFER.key], {"without a TUN device": 1})
    rows = {row.offer: row.refused for row in offers_view(seen, s.OffersQuery(all=True), desired, NOW).offers}
    assert rows == {OFFER.key: "", POD.key: NO_TUN}


@pytest.mark.parametrize(("tun", "status"), [(False, "warn"), (True, "ok")])
async def test_doctor_and_config_check_say_so(tun: bool, status: str) -> None:
    class Pods(Cloud):
        async def check(self) -> str:
            return "an API key"

        async def aclose(self) -> None:
            return

    cloud: Any = Pods()
    cloud.name, cloud.capabilities = RUNPOD, replace(PODS, tun=tun)
    found = await check(cloud)
    assert (found.status, NO_TUN in found.text, "containers" in found.text) == (status, not tun, True)
    (row,) = await provider_rows(File(Path("meshd.toml"), {}, 0o600, ""), cloud, "providers.runpod")  # type: ignore[call-arg]
    assert (row.status, NO_TUN in row.text, "pods_have_tun" in row.cure) == (status, not tun, not tun)


async def test_runpods_own_pods_have_none_unless_the_settings_know_better() -> None:
    for told in (False, True):
        table = {"api_key": "k", "pods_have_tun": told, "pods_have_systemd": told}
        provider = create_runpod(ProviderContext("lab", table, lambda: datetime.now(UTC)))
        assert (provider.capabilities.tun, provider.capabilities.systemd) == (told, told)
        await provider.aclose()


# -- the others -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Small]:
    world = Small(tmp_path)
    yield world
    await world.executor.aclose(1)
    world.journal.close()


async def launch(small: Small, m: Machine) -> Machine:
    small.journal.put(m, "phase", "given", NOW)
    small.executor.begin(p.Launch(m.name, "wanted"))
    await small.settle()
    return small.get(m.name)


async def test_user_data_that_is_too_long_is_refused_before_anything_is_sent(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.cloud.capabilities = replace(ProviderCapabilities(), user_data_max_b=100)

    async def long(machine: Machine) -> UserData:
        return UserData("é" * 51, "a" * 64)

    monkeypatch.setattr(small.agents, "user_data", long)
    found = await launch(small, machine(Phase.REQUESTED))
    assert (found.phase, found.refusal, small.cloud.launched) == (Phase.GONE, "invalid_request", [])
    assert "102 bytes" in found.failure and "100" in found.failure
    assert set(small.journal.cooldowns(small.clock.now())) == {"provider:aws"}, "the ladder goes on with another cloud"


async def test_an_order_that_was_written_down_before_is_not_sent_without_tun(small: Small) -> None:
    small.cloud.capabilities = PODS
    found = await launch(small, machine(Phase.REQUESTED))
    assert (found.phase, small.cloud.launched) == (Phase.GONE, [])
    assert NO_TUN in found.reason


@pytest.mark.parametrize("tags", [True, False])
async def test_tags_are_sent_where_they_are_kept(small: Small, tags: bool) -> None:
    small.cloud.capabilities = replace(ProviderCapabilities(), tags=tags)
    await launch(small, machine(Phase.REQUESTED))
    assert bool(small.cloud.launched[0].tags) is tags


def test_a_pool_of_spot_alone_is_told_when_nobody_has_spot() -> None:
    pool = replace(POOL, spot="only", without_tun=frozenset(), with_spot=frozenset())
    assert why_none([OFFER], pool, ONE, {}, NOW).startswith("only spot will do, and runpod, aws offers none")
    assert "only spot will do" not in why_none([OFFER], replace(pool, with_spot=None), ONE, {}, NOW)


def test_what_is_rented_in_words() -> None:
    assert description(ProviderCapabilities()) == "virtual machines"
    assert description(PODS) == "containers without TUN device and systemd"
    spot_without_tags = ProviderCapabilities(spot=True, tags=False)
    assert description(spot_without_tags).startswith("virtual machines; on demand and spot; no tags")
