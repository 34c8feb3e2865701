"""Launches, lists, and new machines."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from meshd.contract.cases.base import Cases
from meshd.contract.faults import FaultKind, When
from meshd.contract.rig import Rig, does_not_apply
from meshd.contract.steps import CLUSTER, TOKEN, USER_DATA, launched, only_machine, rentable, request, running
from meshd.errors import NotFound, Transient
from meshd.provider_api import CLUSTER_TAG, MACHINE_TAG, Instance, InstanceState, Offer, Provider

NO_TAGS = "the API has no tags; machines are known by their names"
NO_TOKEN = "the API takes no idempotency token; meshd lists by name instead"  # noqa: S105


class LaunchCases(Cases):
    """A launch returns at once and makes exactly the machine that was asked for, once."""

    async def test_launch_returns_while_the_machine_boots(self, provider: Provider, offer: Offer) -> None:
        instance = await provider.launch(request(offer))
        assert instance.state is InstanceState.BOOTING
        assert instance.token == TOKEN
        assert instance.id
        assert (instance.region, instance.instance_type) == (offer.region, offer.instance_type)
        assert instance.usd_per_hour == pytest.approx(offer.usd_per_hour)
        assert instance.public_ip == ""
        assert (await provider.get(instance)).state is InstanceState.BOOTING

    async def test_machine_comes_up_with_its_address(self, rig: Rig, provider: Provider) -> None:
        instance = await running(rig, provider)
        assert instance.state is InstanceState.RUNNING
        assert instance.public_ip == only_machine(rig).address != ""
        assert instance.usd_per_hour == pytest.approx(only_machine(rig).usd_per_hour)

    async def test_machine_is_what_was_asked_for(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        await launched(rig, provider)
        machine = only_machine(rig)
        assert (machine.region, machine.instance_type) == (offer.region, offer.instance_type)
        assert machine.gpus == offer.gpus
        assert machine.token == TOKEN

    async def test_machine_gets_the_user_data_unchanged(self, rig: Rig, provider: Provider) -> None:
        await launched(rig, provider)
        assert only_machine(rig).user_data == USER_DATA

    async def test_as_much_user_data_as_promised_is_taken(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        data = "#" * provider.capabilities.user_data_max_b
        await provider.launch(request(offer, user_data=data))
        assert only_machine(rig).user_data == data

    async def test_machine_carries_name_and_tags(self, rig: Rig, provider: Provider) -> None:
        if not provider.capabilities.tags:
            does_not_apply(NO_TAGS)
        await launched(rig, provider)
        wanted = {CLUSTER_TAG: CLUSTER, MACHINE_TAG: TOKEN, "meshd-pool": "h100"}
        assert only_machine(rig).tags.items() >= wanted.items()

    async def test_different_names_make_different_machines_at_the_same_time(
        self, rig: Rig, provider: Provider, offer: Offer
    ) -> None:
        made = await asyncio.gather(*(provider.launch(request(offer, f"lab-h100-{n}-abcdef")) for n in range(5)))
        assert len({instance.id for instance in made}) == 5
        assert len(rig.machines()) == 5

    async def test_same_name_makes_one_machine(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        if not provider.capabilities.idempotent_launch:
            does_not_apply(NO_TOKEN)
        first = await provider.launch(request(offer))
        second = await rig.make().launch(request(offer))
        assert first.id == second.id
        assert len(rig.machines()) == 1

    async def test_same_name_with_other_user_data_adopts_the_first_machine(
        self, rig: Rig, provider: Provider, offer: Offer
    ) -> None:
        if not provider.capabilities.idempotent_launch:
            does_not_apply(NO_TOKEN)
        first = await provider.launch(request(offer))
        second = await provider.launch(request(offer, user_data="#!/bin/sh\n# another join token\n"))
        assert (first.id, first.token) == (second.id, second.token)
        assert len(rig.machines()) == 1

    async def test_name_of_an_ended_machine_makes_no_second_one(
        self, rig: Rig, provider: Provider, offer: Offer
    ) -> None:
        if not provider.capabilities.idempotent_launch:
            does_not_apply(NO_TOKEN)
        first = await provider.launch(request(offer))
        await provider.terminate(first)
        rig.advance(rig.end_s * 3)
        second = await provider.launch(request(offer))
        assert (second.id, second.state) == (first.id, InstanceState.GONE)
        assert len(rig.machines()) == 1


class ListCases(Cases):
    """A list is complete, has only this cluster's machines, and agrees with `get`."""

    async def test_list_is_empty_at_first(self, provider: Provider) -> None:
        assert list(await provider.list()) == []

    async def test_list_and_get_agree(self, rig: Rig, provider: Provider) -> None:
        instance = await running(rig, provider)
        assert list(await provider.list()) == [instance]

    async def test_get_needs_only_id_and_region(self, rig: Rig, provider: Provider) -> None:
        instance = await running(rig, provider)
        bare = Instance(provider.name, instance.id, "", InstanceState.UNKNOWN, region=instance.region)
        assert (await provider.get(bare)) == instance

    async def test_list_shows_all_machines_of_all_regions(self, rig: Rig, provider: Provider) -> None:
        offers = await rentable(rig, provider)
        by_region = list({offer.region: offer for offer in offers}.values())[:2]
        tokens = [f"lab-h100-{index}-abcdef" for index in range(6)]
        for index, token in enumerate(tokens):
            await provider.launch(request(by_region[index % len(by_region)], token))
        found = {instance.token: instance.region for instance in await provider.list()}
        assert sorted(found) == tokens
        assert set(found.values()) == {offer.region for offer in by_region}

    async def test_list_is_read_to_its_last_page(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        tokens = [f"lab-h100-{index}-abcdef" for index in range(5)]
        for token in tokens:
            await provider.launch(request(offer, token))
        rig.inject(FaultKind.SMALL_PAGES, "list", when=When.ALWAYS)
        assert sorted(found.token for found in await provider.list()) == tokens

    async def test_list_shows_only_this_cluster(self, rig: Rig, provider: Provider) -> None:
        other = rig.make("other")
        offer = (await rentable(rig, other))[0]
        await other.launch(replace(request(offer, "other-h100-1-abcdef"), cluster="other", tags={}))
        assert list(await provider.list()) == []
        assert [instance.token for instance in await other.list()] == ["other-h100-1-abcdef"]

    async def test_a_name_alone_does_not_make_a_machine_ours(self, rig: Rig, provider: Provider) -> None:
        if not provider.capabilities.tags:
            does_not_apply(NO_TAGS)
        other = rig.make("other")
        offer = (await rentable(rig, other))[0]
        await other.launch(replace(request(offer, "lab-h100-9-abcdef"), cluster="other", tags={}))
        assert list(await provider.list()) == []

    async def test_without_tags_only_names_of_the_clusters_form_are_ours(self, rig: Rig, provider: Provider) -> None:
        if provider.capabilities.tags:
            does_not_apply("machines are known by their tags")
        other = rig.make("other")
        offer = (await rentable(rig, other))[0]
        for name in ("lab", "lab-h100", "lab-notes", "lab-ubuntu-22-04", "mylab-h100-1-abcdef", "labs-h100-1-abcdef"):
            await other.launch(replace(request(offer, name), cluster="other"))
        assert list(await provider.list()) == []

    async def test_list_lets_a_restarted_daemon_find_its_machines(self, rig: Rig, provider: Provider) -> None:
        instance = await running(rig, provider)
        assert list(await rig.make().list()) == [instance]

    async def test_two_machines_of_one_name_are_both_listed(self, rig: Rig, provider: Provider) -> None:
        rig.inject(FaultKind.DUPLICATE)
        await launched(rig, provider)
        assert [found.token for found in await provider.list()] == [TOKEN, TOKEN]

    async def test_lists_may_lag(self, rig: Rig, provider: Provider) -> None:
        rig.inject(FaultKind.LIST_LAG, seconds=45)
        instance = await launched(rig, provider)
        assert list(await provider.list()) == []
        rig.advance(46)
        assert [found.id for found in await provider.list()] == [instance.id]


class FreshCases(Cases):
    """A new machine that its cloud does not know yet is not called gone."""

    async def test_new_machine_not_found_is_not_called_gone(self, rig: Rig, provider: Provider) -> None:
        rig.inject(FaultKind.FRESH_NOT_FOUND, seconds=60)
        instance = await launched(rig, provider)
        with pytest.raises(Transient):
            await provider.get(instance)
        rig.advance(61)
        assert (await provider.get(instance)).state is InstanceState.RUNNING

    async def test_new_machine_not_found_is_not_called_gone_after_a_restart(self, rig: Rig, provider: Provider) -> None:
        rig.inject(FaultKind.FRESH_NOT_FOUND, seconds=60)
        instance = await launched(rig, provider)
        bare = Instance(provider.name, instance.id, "", InstanceState.UNKNOWN, region=instance.region)
        with pytest.raises(Transient):
            await rig.make().get(bare)

    async def test_new_machine_not_found_is_not_called_terminated(self, rig: Rig, provider: Provider) -> None:
        rig.inject(FaultKind.FRESH_NOT_FOUND, seconds=60)
        instance = await launched(rig, provider)
        with pytest.raises(Transient):
            await provider.terminate(instance)
        rig.advance(61)
        await provider.terminate(instance)
        rig.advance(rig.end_s * 3)
        assert (await provider.get(instance)).state is InstanceState.GONE

    async def test_forgotten_machine_is_not_found(self, rig: Rig, provider: Provider) -> None:
        instance = await launched(rig, provider)
        await provider.terminate(instance)
        rig.advance(rig.keep_s * 3)
        with pytest.raises(NotFound):
            await provider.get(instance)
