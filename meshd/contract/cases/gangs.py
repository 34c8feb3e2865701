"""Several machines with one call: all of them or none, each with its own name from the first moment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshd.contract.cases.base import Cases, kinds
from meshd.contract.faults import FaultKind, When
from meshd.contract.rig import Rig, does_not_apply
from meshd.contract.steps import CLUSTER, USER_DATA, gang_request, launched, request
from meshd.errors import AuthFailed, NoCapacity, ProviderError, QuotaExceeded, RateLimited, Transient, Uncertain
from meshd.provider_api import CLUSTER_TAG, GANG_TAG, GangLauncher, Instance, InstanceState, Offer, Provider

MACHINES = 4


def launcher(provider: Provider) -> GangLauncher:
    """The adapter as one that rents gangs; ends the case where it is none."""
    if provider.capabilities.gang_max < MACHINES:
        does_not_apply("the API rents one machine with each call")
    assert isinstance(provider, GangLauncher)
    assert provider.capabilities.idempotent_launch
    return provider


class GangCases(Cases):
    """A gang is made by one call, whole or not at all, and once."""

    async def test_one_call_makes_all_machines(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        wanted = gang_request(offer, MACHINES)
        made = await launcher(provider).launch_gang(wanted)
        assert rig.faults.calls("launch") == 1
        assert [instance.token for instance in made] == list(wanted.tokens)
        assert len({instance.id for instance in made}) == MACHINES
        assert {(one.region, one.instance_type, one.state) for one in made} == {
            (offer.region, offer.instance_type, InstanceState.BOOTING)
        }
        assert [instance.usd_per_hour for instance in made] == pytest.approx([offer.usd_per_hour] * MACHINES)
        assert sorted(machine.token for machine in rig.machines()) == sorted(wanted.tokens)
        assert {machine.user_data for machine in rig.machines()} == {USER_DATA}

    async def test_each_machine_of_a_gang_is_listed_with_its_name(
        self, rig: Rig, provider: Provider, offer: Offer
    ) -> None:
        made = await launcher(provider).launch_gang(gang_request(offer, MACHINES))
        rig.advance(rig.boot_s + 1)
        await rig.settle()
        for one in (provider, rig.make()):
            listed = {instance.token: instance for instance in await one.list()}
            assert {token: found.id for token, found in listed.items()} == {one.token: one.id for one in made}
            assert [await one.get(instance) for instance in made] == [listed[instance.token] for instance in made]

    async def test_machines_of_a_gang_carry_the_clusters_tag(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        await launcher(provider).launch_gang(gang_request(offer, MACHINES))
        assert {machine.tags.get(CLUSTER_TAG) for machine in rig.machines()} == {CLUSTER}
        assert {bool(machine.tags.get(GANG_TAG)) for machine in rig.machines()} == {True}

    async def test_as_much_user_data_as_promised_is_taken_for_a_gang(
        self, rig: Rig, provider: Provider, offer: Offer
    ) -> None:
        data = "#" * provider.capabilities.user_data_max_b
        await launcher(provider).launch_gang(gang_request(offer, 2, user_data=data))
        assert {machine.user_data for machine in rig.machines()} == {data}

    async def test_a_gang_that_has_no_room_is_not_made_at_all(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        gangs = launcher(provider)
        rig.set_capacity(offer, MACHINES - 1)
        with pytest.raises(NoCapacity):
            await gangs.launch_gang(gang_request(offer, MACHINES))
        assert not [machine for machine in rig.machines() if machine.alive]
        assert list(await provider.list()) == []
        assert len(await gangs.launch_gang(gang_request(offer, MACHINES - 1))) == MACHINES - 1

    async def test_the_same_gang_is_made_once(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        first = await launcher(provider).launch_gang(gang_request(offer, MACHINES))
        again = await launcher(rig.make()).launch_gang(gang_request(offer, MACHINES))
        other = await launcher(provider).launch_gang(gang_request(offer, MACHINES, user_data="#!/bin/sh\n# other\n"))
        assert [one.id for one in first] == [one.id for one in again] == [one.id for one in other]
        assert len(rig.machines()) == MACHINES

    async def test_another_gang_makes_other_machines(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        first = await launcher(provider).launch_gang(gang_request(offer, MACHINES))
        other = await launcher(provider).launch_gang(gang_request(offer, MACHINES, unique="z9y8x7"))
        assert not {one.id for one in first} & {one.id for one in other}
        assert len(rig.machines()) == 2 * MACHINES

    async def test_the_id_of_a_gang_that_has_ended_makes_no_second_one(
        self, rig: Rig, provider: Provider, offer: Offer
    ) -> None:
        first = await launcher(provider).launch_gang(gang_request(offer, MACHINES))
        for instance in first:
            await provider.terminate(instance)
        rig.advance(rig.end_s * 3)
        second = await launcher(provider).launch_gang(gang_request(offer, MACHINES))
        assert [(one.id, one.state) for one in second] == [(one.id, InstanceState.GONE) for one in first]
        assert len(rig.machines()) == MACHINES

    async def test_one_machine_of_a_gang_ends_alone(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        made = await launcher(provider).launch_gang(gang_request(offer, MACHINES))
        await rig.settle()
        await provider.terminate(made[1])
        rig.advance(rig.end_s + rig.boot_s + 1)
        await rig.settle()
        assert (await provider.get(made[1])).state is InstanceState.GONE
        running = [found.token for found in await provider.list() if found.state is InstanceState.RUNNING]
        assert sorted(running) == sorted(one.token for one in made if one is not made[1])

    async def test_a_gang_and_single_machines_stand_side_by_side(
        self, rig: Rig, provider: Provider, offer: Offer
    ) -> None:
        made = await launcher(provider).launch_gang(gang_request(offer, 2))
        single = await provider.launch(request(offer, "lab-h100-9-abcdef"))
        assert {one.token for one in await provider.list()} == {single.token, *(one.token for one in made)}

    async def test_a_list_may_show_a_part_of_a_gang(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        gangs = launcher(provider)
        rig.inject(FaultKind.LIST_PART, seconds=45)
        made = await gangs.launch_gang(gang_request(offer, MACHINES))
        (first,) = await provider.list()
        assert (first.token, first.id) in {(one.token, one.id) for one in made}
        rig.advance(46)
        assert {one.id for one in await provider.list()} == {one.id for one in made}

    async def test_machines_of_another_clusters_gang_are_not_listed(
        self, rig: Rig, provider: Provider, offer: Offer
    ) -> None:
        other = replace(gang_request(offer, 2), cluster="other", tags={})
        await launcher(rig.make("other")).launch_gang(other)
        assert list(await provider.list()) == []

    @pytest.mark.parametrize(
        ("kind", "error"),
        [
            (FaultKind.NO_CAPACITY, NoCapacity),
            (FaultKind.QUOTA, QuotaExceeded),
            (FaultKind.THROTTLED, RateLimited),
            (FaultKind.AUTH, AuthFailed),
        ],
    )
    async def test_a_gang_is_refused_as_one_machine_is(
        self, rig: Rig, provider: Provider, offer: Offer, kind: FaultKind, error: type[ProviderError]
    ) -> None:
        gangs = launcher(provider)
        rig.inject(kind, "launch")
        with pytest.raises(error):
            await gangs.launch_gang(gang_request(offer, MACHINES))
        assert rig.faults.calls("launch") == 1
        assert list(await provider.list()) == []

    @kinds(FaultKind.ERROR_AFTER, FaultKind.CUT_AFTER, FaultKind.HTML_AFTER)
    async def test_an_unclear_gang_is_found_by_its_names_and_not_made_twice(
        self, rig: Rig, provider: Provider, offer: Offer, kind: FaultKind
    ) -> None:
        gangs, wanted = launcher(provider), gang_request(offer, MACHINES)
        rig.inject(kind, "launch")
        with pytest.raises(Uncertain):
            await gangs.launch_gang(wanted)
        assert sorted(one.token for one in await provider.list()) == sorted(wanted.tokens)
        again = await gangs.launch_gang(wanted)
        assert {one.id for one in again} == {one.id for one in await provider.list()}
        assert len(rig.machines()) == MACHINES

    @kinds(FaultKind.ERROR_BEFORE, FaultKind.CUT_BEFORE, FaultKind.HTML)
    async def test_an_unclear_gang_without_effect(
        self, rig: Rig, provider: Provider, offer: Offer, kind: FaultKind
    ) -> None:
        gangs = launcher(provider)
        rig.inject(kind, "launch")
        with pytest.raises(Uncertain):
            await gangs.launch_gang(gang_request(offer, MACHINES))
        assert rig.faults.calls("launch") == 1
        assert list(await provider.list()) == []

    async def test_new_machines_of_a_gang_are_not_called_gone(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        gangs = launcher(provider)
        rig.inject(FaultKind.FRESH_NOT_FOUND, seconds=60, when=When.ALWAYS)
        made = await gangs.launch_gang(gang_request(offer, 2))
        for instance in made:
            with pytest.raises(Transient):
                await provider.get(instance)

    async def test_only_an_adapter_that_can_says_so(self, provider: Provider) -> None:
        assert isinstance(provider, GangLauncher) is (provider.capabilities.gang_max > 1)

    async def test_a_machine_of_its_own_is_no_gang(self, rig: Rig, provider: Provider) -> None:
        instance: Instance = await launched(rig, provider)
        assert GANG_TAG not in rig.machines()[0].tags
        assert instance.token == rig.machines()[0].token
