"""What lies on the account, where the adapter lists it: whole, or with the reason why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from meshd.contract.cases.base import Cases, kinds
from meshd.contract.faults import FaultKind, When
from meshd.contract.rig import Rig, does_not_apply
from meshd.contract.steps import CLUSTER, rentable, request
from meshd.provider_api import CLUSTER_TAG, MACHINE_TAG, Auditor, Billed, BilledKind, BilledListing, Provider

NAME = "lab-h100-1-k7q2mz"
LEFT = "lab-h100-2-aaaaaa"
TAGS = {CLUSTER_TAG: CLUSTER, MACHINE_TAG: LEFT}
THINGS = pytest.mark.parametrize(
    "thing", [kind for kind in BilledKind if kind is not BilledKind.MACHINE], ids=lambda kind: kind.value
)


def lists(provider: Provider) -> Auditor:
    """The adapter, if it lists what lies on its account."""
    if not isinstance(provider, Auditor):
        does_not_apply("it does not list what lies on its account")
    return provider


def all_of(listings: Sequence[BilledListing], kind: BilledKind) -> list[Billed]:
    """Everything of a kind; each of its listings must be complete."""
    mine = [one for one in listings if one.kind is kind]
    assert mine and not any(one.error for one in mine)
    return [item for one in mine for item in one.items]


class BilledCases(Cases):
    """`billed`."""

    async def test_machines_of_all_clusters_are_listed_and_those_that_ended_are_not(
        self, rig: Rig, provider: Provider
    ) -> None:
        auditor, offers = lists(provider), await rentable(rig, provider)
        ours = await provider.launch(request(offers[0], NAME))
        other = rig.make("other")
        of_other = replace(request(offers[0], "other-h100-1-k7q2mz"), cluster="other", tags={CLUSTER_TAG: "other"})
        theirs = await other.launch(of_other)
        ended = await provider.launch(request(offers[0], LEFT))
        await rig.settle()
        rig.advance(rig.boot_s + 1)
        await provider.terminate(ended)
        rig.advance(rig.end_s + 1)
        await rig.settle()
        found = {one.id: one for one in all_of(await auditor.billed(), BilledKind.MACHINE)}
        assert found.keys() == {ours.id, theirs.id}
        mine = found[ours.id]
        assert (mine.provider, mine.machine, mine.region != "") == (provider.name, NAME, True)
        assert mine.created_at is None or mine.created_at.tzinfo is not None
        assert mine.id.rpartition("/")[2] in mine.cure
        if provider.capabilities.tags:
            assert (mine.cluster, found[theirs.id].cluster) == (CLUSTER, "other")

    @THINGS
    async def test_what_is_no_machine_is_listed(self, rig: Rig, provider: Provider, thing: BilledKind) -> None:
        auditor = lists(provider)
        ours, foreign = rig.plant(thing, LEFT, TAGS), rig.plant(thing, "somebodys", {})
        found = {one.id: one for one in all_of(await auditor.billed(), thing)}
        assert {ours, foreign} <= found.keys()
        for one in (found[ours], found[foreign]):
            assert one.kind is thing and one.provider == provider.name and not one.attached_to
            assert one.created_at is None or one.created_at.tzinfo is not None
            assert one.id.rpartition("/")[2] in one.cure
        assert not found[foreign].cluster
        if found[ours].cluster:
            assert (found[ours].cluster, found[ours].machine) == (CLUSTER, LEFT)

    async def test_a_volume_of_a_machine_says_so(self, rig: Rig, provider: Provider) -> None:
        auditor = lists(provider)
        machine = await provider.launch(request((await rentable(rig, provider))[0], NAME))
        await rig.settle()
        volumes = [one for listing in await auditor.billed() for one in listing.items if one.kind is BilledKind.VOLUME]
        if not volumes:
            does_not_apply("its machines have no volumes of their own")
        assert [one.attached_to for one in volumes] == [machine.id]

    @THINGS
    @kinds(FaultKind.AUTH, FaultKind.ERROR_BEFORE, FaultKind.CUT_BEFORE, FaultKind.HTML, FaultKind.PAGE_FAILS)
    async def test_a_listing_is_complete_or_says_why_not(
        self, rig: Rig, provider: Provider, thing: BilledKind, kind: FaultKind
    ) -> None:
        auditor = lists(provider)
        for number in range(3):
            rig.plant(thing, f"{LEFT[:-1]}{number}", TAGS)
        rig.inject(kind, "*", when=When.ALWAYS)
        listings = [one for one in await auditor.billed() if one.kind is thing]
        assert all(one.error and not one.items for one in listings if one.error), "nothing is known of it"
        shown = sum(len(one.items) for one in listings)
        assert shown in {0, 3} and (shown == 3 or any(one.error for one in listings))
        if kind is not FaultKind.PAGE_FAILS:
            assert shown == 0
        for secret in rig.secrets:
            assert not any(secret in one.error for one in listings)
        rig.clear()
        assert len(all_of(await auditor.billed(), thing)) == 3

    @THINGS
    @kinds(FaultKind.SMALL_PAGES, FaultKind.UNKNOWN_FIELDS)
    async def test_a_strange_listing_of_things(
        self, rig: Rig, provider: Provider, thing: BilledKind, kind: FaultKind
    ) -> None:
        auditor = lists(provider)
        for number in range(5):
            rig.plant(thing, f"{LEFT[:-1]}{number}", TAGS)
        rig.inject(kind, "*", when=When.ALWAYS)
        assert len(all_of(await auditor.billed(), thing)) == 5
