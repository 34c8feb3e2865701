"""Images of machines' disks, where the adapter makes them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from meshd.contract.cases.base import Cases, kinds
from meshd.contract.faults import FaultKind, When
from meshd.contract.rig import Rig, does_not_apply
from meshd.contract.steps import CLUSTER, rentable, request
from meshd.errors import InvalidRequest, NoCapacity, NotFound, ProviderError, Transient, Uncertain
from meshd.provider_api import (
    CLUSTER_TAG,
    IMAGE_TAG,
    Image,
    ImageBaker,
    ImageRequest,
    ImageState,
    Instance,
    InstanceState,
    Provider,
)

NAME = "lab-h100-0-k7q2mz"
OTHER = "lab-h100-0-aaaaaa"


def makes_images(provider: Provider) -> ImageBaker:
    """The adapter, if it makes images."""
    if not isinstance(provider, ImageBaker):
        does_not_apply("it makes no images")
    return provider


def order(instance: Instance, name: str = NAME, cluster: str = CLUSTER) -> ImageRequest:
    """An image of a machine, with one tag besides meshd's own."""
    return ImageRequest(name, instance, {CLUSTER_TAG: cluster, IMAGE_TAG: name, "meshd-slurm": "24.11.5"})


async def switched_off(rig: Rig, provider: Provider, token: str = NAME) -> Instance:
    """A machine that was launched to be copied, and has powered itself off."""
    kinds = (one for one in await provider.offers() if not one.spot and one.arch == "x86_64")
    offer = min(kinds, key=lambda one: (one.usd_per_hour, one.key))
    instance = await provider.launch(replace(request(offer, token), keep_off=True))
    await rig.settle()
    rig.advance(rig.boot_s + 1)
    await provider.list()
    await rig.power_off(token)
    await rig.settle()
    return await provider.get(instance)


async def made(rig: Rig, provider: Provider, name: str = NAME) -> Image:
    """An image that is ready."""
    baker = makes_images(provider)
    await baker.create_image(order(await switched_off(rig, provider, name), name))
    await rig.settle()
    rig.advance(rig.image_s + 1)
    return next(one for one in await baker.images() if one.name == name)


class ImageCases(Cases):
    """`create_image`, `images` and `delete_image`; and machines that boot from an image."""

    async def test_a_machine_that_keeps_off_is_stopped_and_can_be_ended(self, rig: Rig, provider: Provider) -> None:
        makes_images(provider)
        machine = await switched_off(rig, provider)
        assert machine.state is InstanceState.STOPPED
        assert [one.state for one in await provider.list()] == [InstanceState.STOPPED]
        await provider.terminate(machine)
        rig.advance(rig.end_s + 1)
        await rig.settle()
        with suppress(NotFound):
            assert (await provider.get(machine)).state is InstanceState.GONE
        assert not any(one.alive for one in rig.machines())

    async def test_an_image_is_pending_first(self, rig: Rig, provider: Provider) -> None:
        baker = makes_images(provider)
        machine = await switched_off(rig, provider)
        begun = await baker.create_image(order(machine))
        await rig.settle()
        (seen,) = await baker.images()
        assert (seen.id, seen.name, seen.state) == (begun.id, NAME, ImageState.PENDING)
        assert seen.region == begun.region == ("" if provider.capabilities.global_images else machine.region)
        rig.advance(rig.image_s + 1)
        (seen,) = await baker.images()
        assert (seen.id, seen.state) == (begun.id, ImageState.AVAILABLE)
        assert seen.provider == provider.name and seen.arch == "x86_64" and seen.size_gib
        assert seen.created_at is not None and seen.created_at.tzinfo is not None
        assert order(machine).tags.items() <= seen.tags.items()

    async def test_a_machine_boots_from_an_image(self, rig: Rig, provider: Provider) -> None:
        image = await made(rig, provider)
        offers = {one.region: one for one in await rentable(rig, provider) if image.region in ("", one.region)}
        for number, offer in enumerate(offers.values()):
            machine = await provider.launch(replace(request(offer, f"lab-h100-{number}-zzzzzz"), image=image.id))
            await rig.settle()
            rig.advance(rig.boot_s + 1)
            assert (await provider.get(machine)).state is InstanceState.RUNNING
            assert rig.image_of(machine.token) == image.id
        assert offers

    async def test_tags_come_back_as_they_were_given(self, rig: Rig, provider: Provider) -> None:
        baker = makes_images(provider)
        wanted = order(await switched_off(rig, provider))
        tags = {
            **wanted.tags,
            "meshd-slurm": "24.11.5-4",
            "meshd-parts": "0123456789abcdef",
            "meshd-tailscale": "1.96_a",
        }
        await baker.create_image(replace(wanted, tags=tags))
        await rig.settle()
        (seen,) = await baker.images()
        assert tags.items() <= seen.tags.items()

    async def test_one_name_makes_one_image(self, rig: Rig, provider: Provider) -> None:
        baker = makes_images(provider)
        machine = await switched_off(rig, provider)
        first = await baker.create_image(order(machine))
        await rig.settle()
        again = await baker.create_image(order(machine))
        assert again.id == first.id and len(await baker.images()) == 1

    async def test_images_of_another_cluster_are_not_listed(self, rig: Rig, provider: Provider) -> None:
        await made(rig, provider)
        assert await makes_images(rig.make("other")).images() == []

    async def test_an_image_that_fails(self, rig: Rig, provider: Provider) -> None:
        baker = makes_images(provider)
        machine = await switched_off(rig, provider)
        rig.inject(FaultKind.IMAGE_FAILS, "create_image")
        begun = await baker.create_image(order(machine))
        await rig.settle()
        rig.advance(rig.image_s + 1)
        found = {one.id: one for one in await baker.images()}
        assert begun.id not in found or found[begun.id].state is ImageState.FAILED
        await baker.delete_image(begun)
        await rig.settle()
        assert await baker.images() == [] and rig.stored_images() == 0

    @kinds(FaultKind.QUOTA, FaultKind.AUTH, FaultKind.THROTTLED, FaultKind.ERROR_BEFORE, FaultKind.CUT_BEFORE)
    async def test_a_refused_image_is_not_made(self, rig: Rig, provider: Provider, kind: FaultKind) -> None:
        baker = makes_images(provider)
        machine = await switched_off(rig, provider)
        rig.inject(kind, "create_image")
        with pytest.raises(ProviderError) as caught:
            await baker.create_image(order(machine))
        assert not isinstance(caught.value, (NotFound, NoCapacity))
        assert rig.stored_images() == 0
        await baker.create_image(order(machine))
        await rig.settle()
        assert len(await baker.images()) == 1

    @kinds(FaultKind.ERROR_AFTER, FaultKind.CUT_AFTER, FaultKind.HTML_AFTER)
    async def test_a_lost_answer_makes_no_second_image(self, rig: Rig, provider: Provider, kind: FaultKind) -> None:
        baker = makes_images(provider)
        machine = await switched_off(rig, provider)
        rig.inject(kind, "create_image")
        with pytest.raises(Uncertain):
            await baker.create_image(order(machine))
        await rig.settle()
        again = await baker.create_image(order(machine))
        assert [one.id for one in await baker.images()] == [again.id] and rig.stored_images() == 1

    async def test_nothing_is_left_of_a_deleted_image(self, rig: Rig, provider: Provider) -> None:
        baker, image = makes_images(provider), await made(rig, provider)
        other = await made(rig, provider, OTHER)
        await baker.delete_image(image)
        await rig.settle()
        assert [one.id for one in await baker.images()] == [other.id] and rig.stored_images() == 1
        await baker.delete_image(image)

    @pytest.mark.parametrize("skip", range(3))
    @kinds(FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.CUT_AFTER)
    async def test_an_image_that_is_deleted_halfway_is_seen(
        self, rig: Rig, provider: Provider, kind: FaultKind, skip: int
    ) -> None:
        baker, image = makes_images(provider), await made(rig, provider)
        rig.inject(kind, "delete_image", skip=skip)
        with suppress(Transient, Uncertain):
            await baker.delete_image(image)
        rig.clear()
        await rig.settle()
        left = await baker.images()
        assert len(left) == rig.stored_images(), "what is stored is listed"
        for one in left:
            await baker.delete_image(one)
        await rig.settle()
        assert await baker.images() == [] and rig.stored_images() == 0

    async def test_a_machine_outlives_its_image(self, rig: Rig, provider: Provider) -> None:
        baker, image = makes_images(provider), await made(rig, provider)
        offer = next(one for one in await rentable(rig, provider) if image.region in ("", one.region))
        machine = await provider.launch(replace(request(offer), image=image.id))
        await rig.settle()
        rig.advance(rig.boot_s + 1)
        await baker.delete_image(image)
        await rig.settle()
        assert rig.stored_images() == 0
        assert (await provider.get(machine)).state is InstanceState.RUNNING

    async def test_a_launch_from_an_image_that_is_gone(self, rig: Rig, provider: Provider) -> None:
        baker, image = makes_images(provider), await made(rig, provider)
        offer = next(one for one in await rentable(rig, provider) if image.region in ("", one.region))
        await baker.delete_image(image)
        await rig.settle()
        machines = len(rig.machines())
        with pytest.raises(InvalidRequest):
            await provider.launch(replace(request(offer), image=image.id))
        assert len(rig.machines()) == machines

    @kinds(FaultKind.AUTH, FaultKind.ERROR_BEFORE, FaultKind.CUT_BEFORE, FaultKind.HTML, FaultKind.PAGE_FAILS)
    async def test_a_listing_of_images_is_complete_or_fails(
        self, rig: Rig, provider: Provider, kind: FaultKind
    ) -> None:
        baker = makes_images(provider)
        for name in (NAME, OTHER, "lab-h100-0-bbbbbb"):
            await made(rig, provider, name)
        rig.inject(kind, "images", when=When.ALWAYS)
        with pytest.raises(ProviderError) as caught:
            await baker.images()
        assert not isinstance(caught.value, Uncertain)
        rig.clear()
        assert len(await baker.images()) == 3

    @kinds(FaultKind.SMALL_PAGES, FaultKind.UNKNOWN_FIELDS)
    async def test_a_strange_listing_of_images(self, rig: Rig, provider: Provider, kind: FaultKind) -> None:
        baker = makes_images(provider)
        for name in (NAME, OTHER, "lab-h100-0-bbbbbb"):
            await made(rig, provider, name)
        rig.inject(kind, "images", when=When.ALWAYS)
        assert len(await baker.images()) == 3

    async def test_a_state_that_is_new_is_unknown(self, rig: Rig, provider: Provider) -> None:
        baker = makes_images(provider)
        await made(rig, provider)
        rig.inject(FaultKind.UNKNOWN_STATE, "images", when=When.ALWAYS)
        assert [one.state for one in await baker.images()] == [ImageState.UNKNOWN]
