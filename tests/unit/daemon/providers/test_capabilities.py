"""What a provider says of itself is acted on, or shown."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from meshd.api import schema as s
from meshd.cli.settings_check import pod_rows, provider_rows
from meshd.codes import FaultCode
from meshd.config import File, Settings, parse, read
from meshd.daemon.head_api.offers import offers_view
from meshd.daemon.machines import desired_state as wanted
from meshd.daemon.machines.create_calls import UserData
from meshd.daemon.providers.report import check
from meshd.errors import ConfigError
from meshd.model import plan as p
from meshd.model.desired import Desired, PodPolicy, Policy, Pool, Target
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Fresh
from meshd.plan.alternatives import OfferRule, considered
from meshd.plan.explanation import constraints
from meshd.plan.offers import ONLY_PODS, PODS_REFUSED
from meshd.plan.placement import usable, why_none
from meshd.plan.provider_capabilities import WITHOUT_SYSTEMD, WITHOUT_TUN, description, is_pod, limits_of
from meshd.provider_api import MachineKind, Offer, ProviderCapabilities, ProviderContext, ProviderName
from providers.runpod.provider import create as create_runpod
from tests.unit.daemon.small import Cloud, Small
from tests.unit.worlds import FACTS, NOW, OFFER, machine, snapshot

RUNPOD = ProviderName("runpod")
POD = replace(OFFER, provider=RUNPOD, region="US-KS-2", zone="", usd_per_hour=1.0)
PODS = ProviderCapabilities(machine_kind=MachineKind.CONTAINER, tun=False, systemd=False)
POOL = Pool("h100", "h100", 1, 8, ("runpod", "aws"), pod_providers=frozenset({"runpod"}))
ONE = Target("h100", 1)


def test_no_capability_that_nobody_reads() -> None:
    own = {"provider_api.py"}
    code = [file for file in Path("meshd").rglob("*.py") if file.name not in own and "contract" not in file.parts]
    texts = [file.read_text() for file in code]
    for field in fields(ProviderCapabilities):
        read = re.compile(rf"(capabilities|can)\.{field.name}\b")
        assert any(read.search(text) for text in texts), field.name


# -- pods -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "said", "fit"),
    [
        ("allow", "", [OFFER, POD]),
        ("never", "", [OFFER]),
        ("only", "", [POD]),
        ("never", "allow", [OFFER, POD]),
        ("allow", "only", [POD]),
        ("only", "never", [OFFER]),
    ],
)
def test_which_offers_will_do(own: PodPolicy, said: PodPolicy | Literal[""], fit: list[Offer]) -> None:
    pool, target = replace(POOL, pods=own), replace(ONE, pods=said)
    assert usable([OFFER, POD], pool, target, {}, NOW) == fit
    considered_ = {offer.key: rule for offer, rule, _ in considered([OFFER, POD], pool, target, {}, set(), NOW)}
    assert {key for key, rule in considered_.items() if rule is OfferRule.MISFIT} == {
        offer.key for offer in (OFFER, POD) if offer not in fit
    }
    refused = next((offer for offer in (OFFER, POD) if offer not in fit), None)
    if refused is not None:
        assert ("--pods" if said else "pools.h100.pods") in why_none([refused], pool, target, {}, NOW)
    assert f"pods: {said or own}" in constraints(pool, target)


def test_the_pools_learn_from_the_adapters_who_rents_pods() -> None:
    settings = Settings(
        providers={"aws": {}, "runpod": {}},
        pools={"h100": {"gpu": "h100"}, "own": {"gpu": "l4", "providers": ["aws"], "pods": "never"}},
    )  # type: ignore[arg-type]
    pods, vms = Cloud(), Cloud()
    pods.capabilities = PODS
    able: Any = {"runpod": pods, "aws": vms}
    pools = wanted.pools(settings, able, NOW, shapes_fixed=False, able=able)
    assert {name: (pool.pods, pool.pod_providers) for name, pool in pools.items()} == {
        "h100": ("allow", {"runpod"}), "own": ("never", {"runpod"})
    }  # fmt: skip
    policy = wanted.policy(settings.timing, settings.prices, may_change_devices=False, providers=able)
    assert policy.pod_limits == {"runpod": f"{WITHOUT_SYSTEMD}; {WITHOUT_TUN}"}


@pytest.mark.parametrize(
    ("policies", "left_out"),
    [
        (("allow",), {}),
        (("never",), {PODS_REFUSED: 1}),
        (("only",), {ONLY_PODS: 1}),
        (("never", "only"), {}),
        (("never", "never"), {PODS_REFUSED: 1}),
    ],
)
def test_meshctl_offers_leaves_out_what_every_pool_refuses(
    policies: tuple[PodPolicy, ...], left_out: dict[str, int]
) -> None:
    pools = {f"p{index}": replace(POOL, name=f"p{index}", pods=policy) for index, policy in enumerate(policies)}
    desired = Desired("lab", pools, {}, Policy(pod_limits={"runpod": "no systemd"}))
    seen = snapshot(offers={"runpod": Fresh((POD,), NOW), "aws": Fresh((OFFER,), NOW)})
    view = offers_view(seen, s.OffersQuery(), desired, NOW)
    assert (len(view.offers), dict(view.left_out)) == (2 - len(left_out), left_out)
    everything = offers_view(seen, s.OffersQuery(all=True), desired, NOW).offers
    assert {row.offer: (row.pod, row.limits) for row in everything} == {
        OFFER.key: (False, ""), POD.key: (True, "no systemd")
    }  # fmt: skip
    refused = [row.refused for row in everything if row.refused]
    assert len(refused) == len(left_out)
    assert all(f"pools.{name}.pods" in text for text in refused for name in pools)


def test_meshctl_offers_finds_pods_alone_and_none() -> None:
    desired = Desired("lab", {"h100": POOL}, {}, Policy(pod_limits={"runpod": ""}))
    seen = snapshot(offers={"runpod": Fresh((POD,), NOW), "aws": Fresh((OFFER,), NOW)})
    for pods, found in ((True, POD), (False, OFFER)):
        assert [row.offer for row in offers_view(seen, s.OffersQuery(pods=pods), desired, NOW).offers] == [found.key]
    only_vms = snapshot(offers={"aws": Fresh((OFFER,), NOW)})
    assert [near.field for near in offers_view(only_vms, s.OffersQuery(pods=True), desired, NOW).near] == ["pods"]


async def test_doctor_and_config_check_describe_them() -> None:
    class Pods(Cloud):
        async def check(self) -> str:
            return "an API key"

        async def aclose(self) -> None:
            return

    cloud: Any = Pods()
    cloud.name, cloud.capabilities = RUNPOD, PODS
    (row,) = await provider_rows(File(Path("meshd.toml"), {}, 0o600, ""), cloud, "providers.runpod")  # type: ignore[call-arg]
    for found in (await check(cloud), row):
        assert (found.status, description(PODS) in found.text) == ("ok", True)


@pytest.mark.parametrize(
    ("settings", "providers", "warned"),
    [
        ("pods = 'allow'", ["runpod"], False),
        ("", ["runpod"], False),
        ("[share.home]\npath = '/home'", ["runpod"], True),
        ("pods = 'allow'\n[share.home]\npath = '/home'", ["runpod"], False),
        ("pods = 'allow'", [], False),
        ("pods = 'never'", [], False),
        ("pods = 'never'", ["runpod"], True),
        ("pods = 'only'", ["aws"], True),
        ("pods = 'only'", ["aws", "runpod"], False),
        ("pods = 'only'", ["off"], False),
    ],
)
def test_config_check_warns_of_a_pool_that_can_rent_nothing(
    tmp_path: Path, settings: str, providers: list[str], warned: bool
) -> None:
    path = tmp_path / "meshd.toml"
    path.write_text(
        "[providers.aws]\n[providers.runpod]\n[providers.off]\nenabled = false\n"
        f"[pools.h100]\ngpu = 'h100'\nproviders = {providers}\n{settings}\n"
    )
    file = read(path)
    rows = pod_rows(parse(file), file, {"aws": False, "runpod": True})
    assert [(row.status, row.code) for row in rows] == [("warn", FaultCode.PODS)] * warned


@pytest.mark.parametrize("key", ["pods_have_tun", "pods_have_systemd"])
def test_settings_that_said_what_pods_have_are_refused_with_their_cure(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_runpod(ProviderContext("lab", {"api_key": "k", key: True}, lambda: datetime.now(UTC)))
    (fault,) = caught.value.faults
    assert (fault.code, fault.key) == (FaultCode.UNKNOWN_KEY, ("providers", "runpod", key))
    assert fault.cure.startswith("delete the line")


@pytest.mark.parametrize(("systemd", "tun"), [(None, None), (True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("said", [True, False])
def test_what_a_machine_reports_wins_over_what_its_provider_says(
    systemd: bool | None, tun: bool | None, said: bool
) -> None:
    pod_limits = {"aws": "what the provider says"} if said else {}
    found = replace(machine(Phase.READY), facts=replace(FACTS, systemd=systemd, tun=tun), lacks=("core_limits",))
    assert is_pod(found, pod_limits) is (said if systemd is None else not systemd)
    shown = limits_of(found, pod_limits)
    if systemd is None:
        assert shown == ("what the provider says" if said else "")
    else:
        assert ("core limits" in shown, WITHOUT_TUN in shown) == (True, not tun)
        assert "jobs lack" not in limits_of(replace(found, lacks=()), pod_limits)
    assert is_pod(replace(found, facts=None), pod_limits) is said


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


@pytest.mark.parametrize("tags", [True, False])
async def test_tags_are_sent_where_they_are_kept(small: Small, tags: bool) -> None:
    small.cloud.capabilities = replace(ProviderCapabilities(), tags=tags)
    await launch(small, machine(Phase.REQUESTED))
    assert bool(small.cloud.launched[0].tags) is tags


def test_a_pool_of_spot_alone_is_told_when_nobody_has_spot() -> None:
    pool = replace(POOL, spot="only", with_spot=frozenset())
    assert why_none([OFFER], pool, ONE, {}, NOW).startswith("only spot will do, and runpod, aws offers none")
    assert "only spot will do" not in why_none([OFFER], replace(pool, with_spot=None), ONE, {}, NOW)


def test_what_is_rented_in_words() -> None:
    assert description(ProviderCapabilities()) == "virtual machines"
    assert description(PODS) == f"pods; {WITHOUT_SYSTEMD}; {WITHOUT_TUN}"
    assert description(replace(PODS, tun=True)) == f"pods; {WITHOUT_SYSTEMD}"
    assert description(replace(PODS, systemd=True, tun=True)) == "containers"
    spot_without_tags = ProviderCapabilities(spot=True, tags=False)
    assert description(spot_without_tags).startswith("virtual machines; on demand and spot; no tags")
