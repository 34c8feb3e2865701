"""The contract on the provider `static`: a host is a cloud with one machine, which is assigned instead of rented."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import pytest

from meshd.contract.cases.lifecycle import LifecycleCases, TerminateCases
from meshd.contract.cases.offers import OfferCases
from meshd.contract.cases.renting import LaunchCases, ListCases
from meshd.contract.faults import FaultEngine, FaultKind
from meshd.contract.rig import CloudMachine, Rig, does_not_apply
from meshd.contract.steps import TOKEN, only_machine, rentable, request, running
from meshd.daemon.machine_store import MachineStore
from meshd.errors import NoCapacity, NotFound
from meshd.model.hardware import GpuFact
from meshd.model.host import Host, HostState
from meshd.model.ids import PoolName, SlotName
from meshd.plan.hosts import offer_of
from meshd.provider_api import Instance, InstanceId, InstanceState, Offer, Provider
from meshd.store.hosts import Hosts
from meshd.store.journal import Journal
from tests.clocks import HandClock
from tests.host_room import Woken, static_provider
from tests.unit.worlds import FACTS, NOW

GPU = GpuFact(0, "NVIDIA H100 80GB HBM3", "GPU-0", 81559, "/dev/nvidia0")
NAMES = ("attic", "tower")
ONE = "a host is one machine"


class StaticRig(Rig):
    """Two hosts that do as they are told, and call every few seconds unless they are off."""

    name = "static"
    unsupported = dict.fromkeys(FaultKind, "no call goes over a network")

    async def start(self) -> None:
        """Enrol the hosts."""
        self.clock, self.faults = HandClock(NOW), FaultEngine()
        directory = TemporaryDirectory()
        self.stack.callback(directory.cleanup)
        journal = Journal(Path(directory.name) / "j.db")
        self.stack.callback(journal.close)
        self.store, self.hosts = MachineStore(journal, self.clock, lambda: None), Hosts(journal)
        self.off: set[str] = set()
        self.woken = Woken()
        self.made: dict[str, tuple[str, float]] = {}
        for index, name in enumerate(NAMES, start=1):
            host = Host(name, PoolName("h100"), SlotName(f"h100-{index}"), NOW, NOW + timedelta(hours=1))
            self.hosts.put(
                replace(
                    host, enrolled_at=NOW, device_id=f"n-{index}", tailnet_ip=f"100.64.0.{index + 1}", seen_at=NOW,
                    facts=replace(FACTS, gpus=(GPU,)), usd_per_hour=0.5 * index,
                ),
                "enrolled", NOW,
            )  # fmt: skip
        self.hosts.on_change(self._note)

    def _note(self, name: str) -> None:
        host = self.hosts.find(name)
        if host is not None and host.machine:
            self.made.setdefault(host.machine, (name, self.clock.monotonic_s()))

    def build(self, cluster: str, **settings: Any) -> Provider:
        """The provider; it has no settings."""
        return static_provider(self.hosts, self.store, self.woken)

    def unreachable(self) -> NoReturn:
        """There is no network."""
        does_not_apply("no call goes over a network")

    def advance(self, seconds: float) -> None:
        """Time passes; the hosts that are on have called until now."""
        self.clock.t_s += seconds
        for host in self.hosts.all():
            if host.name in self.off:
                continue
            _, since_s = self.made.get(host.machine, ("", 0.0))
            up = bool(host.machine) and self.clock.monotonic_s() - since_s >= self.boot_s
            state = HostState.NODE if up else HostState.JOINING if host.machine else HostState.FREE
            runs = host.machine if up else ""
            self.hosts.note(replace(host, seen_at=self.clock.now(), state=state, runs=runs))

    async def power_off(self, token: str) -> None:
        """Its owner takes it away; nobody hears of it for a minute."""
        self.off.add(self.made[token][0])
        self.advance(61)

    def machines(self) -> Sequence[CloudMachine]:
        """Each stay of a host."""
        return [
            CloudMachine(
                token=token, alive=host.machine == token, region="owned", instance_type=name, gpus=1,
                usd_per_hour=host.usd_per_hour, user_data="", address=host.tailnet_ip,
            )
            for token, (name, _) in self.made.items()
            if (host := self.hosts.find(name)) is not None
        ]  # fmt: skip


class TestStatic(OfferCases, LaunchCases, ListCases, TerminateCases, LifecycleCases):
    """The cases that apply to machines which exist already."""

    rig_class = StaticRig

    @pytest.fixture
    async def rig(self) -> Any:
        """Without a row in the report of the clouds."""
        async with StaticRig() as rig:
            yield rig

    async def test_offers_are_complete(self, provider: Provider) -> None:
        """The price is the owner's, and has no date."""
        for offer in await provider.offers():
            assert (offer.gpu, offer.gpus, offer.gpu_memory_gib) == ("h100-sxm", 1, 80)
            assert (offer.vcpus, offer.memory_mib, offer.price_as_of) == (8, 65536, None)
            assert offer.usd_per_hour > 0 and offer.available and offer.slot and offer.standing

    async def test_offers_never_call_a_full_region_free(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        """A host with a machine is taken."""
        await provider.launch(request(offer))
        assert [o.available for o in await provider.offers() if o.key == offer.key] == [False]
        with pytest.raises(NoCapacity):
            await provider.launch(request(offer, "lab-h100-1-abcdef"))

    async def test_machine_gets_the_user_data_unchanged(self, rig: Rig, provider: Provider) -> None:
        does_not_apply("a host fetches what it needs")

    async def test_as_much_user_data_as_promised_is_taken(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        does_not_apply("a host fetches what it needs")

    async def test_different_names_make_different_machines_at_the_same_time(
        self, rig: Rig, provider: Provider, offer: Offer
    ) -> None:
        """Of the two hosts."""
        offers = await rentable(rig, provider)
        made = [await provider.launch(request(one, f"lab-{one.slot}-abcdef")) for one in offers]
        assert len({instance.id for instance in made}) == len(rig.machines()) == 2

    async def test_list_shows_all_machines_of_all_regions(self, rig: Rig, provider: Provider) -> None:
        for one in await rentable(rig, provider):
            await provider.launch(request(one, f"lab-{one.slot}-abcdef"))
        assert [found.token for found in await provider.list()] == ["lab-h100-1-abcdef", "lab-h100-2-abcdef"]

    async def test_list_is_read_to_its_last_page(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        does_not_apply(ONE)

    async def test_list_shows_only_this_cluster(self, rig: Rig, provider: Provider) -> None:
        does_not_apply("the journal is one cluster's")

    async def test_without_tags_only_names_of_the_clusters_form_are_ours(self, rig: Rig, provider: Provider) -> None:
        does_not_apply("the journal is one cluster's")

    async def test_terminate_is_accepted_and_then_done(self, rig: Rig, provider: Provider) -> None:
        """It is done at once: a host that is away learns it later, and is not free before."""
        instance = await running(rig, provider)
        await provider.terminate(instance)
        assert (await provider.get(instance)).state is InstanceState.GONE
        assert not only_machine(rig).alive
        assert list(await provider.list()) == []

    async def test_terminate_of_one_leaves_the_others(self, rig: Rig, provider: Provider) -> None:
        first, second = await rentable(rig, provider)
        one = await provider.launch(request(first, "lab-h100-1-abcdef"))
        other = await provider.launch(request(second, "lab-h100-2-abcdef"))
        await provider.terminate(one)
        rig.advance(rig.boot_s + 1)
        assert [(found.id, found.state) for found in await provider.list()] == [(other.id, InstanceState.RUNNING)]


async def test_a_host_that_goes_and_comes_back() -> None:
    async with StaticRig() as rig:
        provider = rig.make()
        instance = await running(rig, provider)
        await rig.power_off(TOKEN)
        found = await provider.get(instance)
        assert (found.state, found.reason) == (InstanceState.STOPPED, "attic is away since 2026-03-01 12:00 UTC")
        await provider.terminate(instance)
        offer = (await rentable(rig, provider))[0]
        assert (offer.slot, offer.available) == ("h100-1", False)
        rig.off.clear()
        rig.advance(5)
        offer = (await rentable(rig, provider))[0]
        assert (offer.slot, offer.available) == ("h100-1", True)
        with pytest.raises(NotFound):
            bare = InstanceId("attic/lab-h100-1-nobody")
            await provider.get(Instance(provider.name, bare, "", InstanceState.UNKNOWN))


async def test_nothing_is_concluded_right_after_a_restart() -> None:
    """Until each host could have called the new meshd, its silence means nothing."""
    async with StaticRig() as rig:
        instance = await running(rig, rig.make())
        rig.off.update(NAMES)
        rig.advance(3600)
        again = rig.make()
        assert (await again.get(instance)).state is InstanceState.UNKNOWN
        rig.advance(61)
        assert (await again.get(instance)).state is InstanceState.STOPPED


async def test_a_host_that_sleeps_is_woken_and_put_to_sleep() -> None:
    async with StaticRig() as rig:
        provider = rig.make()
        attic = rig.hosts.change(
            "attic", "it sleeps", NOW, wake_mac="3c:ec:ef:00:12:34", sleep_command=("systemctl", "suspend")
        )
        rig.off.add("attic")
        rig.advance(3600)
        offer = next(o for o in await provider.offers() if o.slot == attic.slot)
        assert (offer.standing, offer.available) == (False, True)
        made = await provider.launch(request(offer))
        assert (made.state, rig.woken.names) == (InstanceState.BOOTING, ["attic"])
        rig.off.clear()
        rig.advance(rig.boot_s + 1)
        assert (await provider.get(made)).state is InstanceState.RUNNING
        await provider.terminate(made)
        asleep = rig.hosts.find("attic")
        assert asleep is not None and asleep.sleeping_since is not None and offer_of(asleep) is not None
