"""Makes images, knows those that there are, and deletes halves.

The journal has a bake before its machine is ordered, and COPYING before the cloud is asked to copy. Each step may be
repeated: a machine and an image have one name, which is used once. What an image is stands in its tags at the cloud, so
that a lost journal loses none. The machine has a record like any other, and is rented, billed and ended as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

import structlog

from meshd.api.schema import ProblemView
from meshd.codes import EventKind, ProblemCode
from meshd.daemon.controller import Controller
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.reporting import problem
from meshd.errors import InvalidRequest, NotFound, ProviderError, Transient
from meshd.model.freeze import Freeze
from meshd.model.image import PARTS_TAG, SLURM_TAG, TAILSCALE_TAG, Bake, BakePhase
from meshd.model.machine import Machine, Phase, Removal
from meshd.plan import images as plan
from meshd.provider_api import (
    CLUSTER_TAG,
    IMAGE_TAG,
    Console,
    Image,
    ImageBaker,
    ImageRequest,
    ImageState,
    Instance,
    InstanceId,
    InstanceState,
    Offer,
    Provider,
    ProviderName,
)
from meshd.store.bakes import Bakes

log = structlog.get_logger(__name__)

REFUSED_S = 3600.0
"""How long no machine boots from an image from which none could be made."""
LOOK_S = 300.0
"""How often images are listed."""
BAKING_S = 5.0
"""The same while one is being made."""
INSTALL_MAX_S = 3600.0
COPY_MAX_S = 3 * 3600.0
"""A large disk takes long."""


class ImageController(Controller):
    """See the module.

    Args:
        cluster: its name.
        bakes: the journal's.
        machine_store: the machines.
        providers: the enabled ones; those that are an ImageBaker have images.
        freeze: the freeze that holds: none is made then, and none deleted.
    """

    name = "images"

    def __init__(
        self,
        cluster: str,
        bakes: Bakes,
        machine_store: MachineStore,
        providers: Mapping[str, Provider],
        freeze: Callable[[], Freeze | None] = lambda: None,
    ) -> None:
        self.freeze = freeze
        super().__init__(machine_store.clock)
        self._cluster = cluster
        self._bakes = bakes
        self._machine_store = machine_store
        self._providers = providers
        self.images: Mapping[str, tuple[Image, ...]] = {}
        """The images of each provider, as listed last. A provider that was never listed is not in it."""
        self.unread: Mapping[str, str] = {}
        """Why the last listing of a provider failed."""
        self._refused: Mapping[tuple[str, str], tuple[datetime, str]] = {}
        """When no machine could be made from an image, and the cloud's words: by provider and id."""

    @property
    def bakers(self) -> Mapping[str, Provider]:
        """The providers that make images."""
        return {name: one for name, one in self._providers.items() if isinstance(one, ImageBaker)}

    def all(self) -> tuple[Image, ...]:
        """All images that are known."""
        return tuple(image for images in self.images.values() for image in images)

    def image_for(self, offer: Offer) -> str:
        """The id of the image that a machine of this offer boots from; "" for the one that the settings lead to."""
        provider = self._providers.get(offer.provider)
        if not isinstance(provider, ImageBaker) or provider.named_image(offer):
            return ""
        usable = (one for one in self.images.get(offer.provider, ()) if not self.refusal(one))
        return plan.image_for(usable, offer)

    def refused(self, provider: str, image: str, words: str) -> None:
        """See BootImages. The images are listed soon: it may have been deleted."""
        at = self._now()
        self._refused = {
            **{key: one for key, one in self._refused.items() if (at - one[0]).total_seconds() < REFUSED_S},
            (provider, image): (at, words),
        }
        text = f"no machine could be made from {provider} image {image}, others boot from another one: {words}"
        self._machine_store.journal.event(at, EventKind.IMAGE, text, image=image)
        self.wake()

    def refusal(self, image: Image) -> str:
        """Why no machine boots from an image for now; "" when they do."""
        at, words = self._refused.get((image.provider, image.id), (None, ""))
        if at is None or (self._now() - at).total_seconds() >= REFUSED_S:
            return ""
        return f"no machine could be made from it at {at:%H:%M} UTC: {words}"

    async def reconcile(self) -> float:
        """Make one pass. See Controller."""
        await self.look()
        if self.freeze() is not None:
            return LOOK_S
        for bake in self._bakes.active():
            try:
                await self._go_on(bake)
            except ProviderError as error:
                log.warning("bake_waits", image=bake.name, reason=str(error))
        for image in tuple(plan.half(self.all(), self._bakes.all())):
            await self._delete_half(image)
        return BAKING_S if self._bakes.active() else LOOK_S

    async def look(self) -> None:
        """List the images of all providers. Raises nothing: what cannot be read stays as it was."""
        names = list(self.bakers)
        found = await asyncio.gather(*(self._list(name) for name in names))
        self.images = {**self.images, **{name: one for name, one in zip(names, found, strict=True) if one is not None}}

    async def _list(self, name: str) -> tuple[Image, ...] | None:
        provider = self._providers[name]
        assert isinstance(provider, ImageBaker)
        try:
            found = tuple(await provider.images())
        except ProviderError as error:
            if self.unread.get(name) != str(error):
                log.warning("images_unread", provider=name, reason=str(error))
            self.unread = {**self.unread, name: str(error)}
            return None
        self.unread = {other: why for other, why in self.unread.items() if other != name}
        return found

    def problems(self) -> Iterable[ProblemView]:
        """Why the last image of a provider was not made, and the images from which no machine can be made."""
        for image in self.all():
            if why := self.refusal(image):
                text = f"{image.provider} image {image.id} is left alone, and machines boot without it: {why}"
                cure = f"grant what it names (docs/providers.md); else `meshctl image bake --provider {image.provider}`"
                since, _ = self._refused[image.provider, image.id]
                yield problem(ProblemCode.IMAGE_REFUSED, "warning", text, cure, since=since)
        latest: dict[str, Bake] = {}
        for bake in self._bakes.all():
            latest[bake.provider] = bake
        for bake in latest.values():
            if bake.phase is BakePhase.FAILED:
                cure = f"`meshctl logs {bake.name}` may show more; `meshctl image bake --provider {bake.provider}`"
                text = f"no image was made on {bake.provider}: {bake.reason}"
                yield problem(ProblemCode.IMAGE_FAILED, "warning", text, cure, since=bake.phase_since)

    async def delete(self, image: Image, why: str) -> None:
        """Delete an image. Raises ProviderError."""
        provider = self._providers.get(image.provider)
        if isinstance(provider, ImageBaker):
            await provider.delete_image(image)
            text = f"{image.provider} image {image.id} ({image.name or 'no name'}) is deleted: {why}"
            self._machine_store.journal.event(self._now(), EventKind.IMAGE, text, image=image.id)

    async def _delete_half(self, image: Image) -> None:
        try:
            await self.delete(image, image.reason or "it is of no use")
        except ProviderError as error:
            log.warning("image_not_deleted", image=image.id, reason=str(error))

    # -- one bake -------------------------------------------------------------------------------------------------

    async def _go_on(self, bake: Bake) -> None:
        machine = self._machine_store.journal.machine(bake.name)
        late_s = (self._now() - bake.phase_since).total_seconds()
        if machine is None or machine.phase in {Phase.TERMINATING, Phase.LOST, Phase.GONE} or machine.removal:
            why = (machine.failure or machine.reason) if machine is not None else "the journal lost its machine"
            ready = any(i.name == bake.name and i.state is ImageState.AVAILABLE for i in self.all())
            text = "it is ready" if ready else f"its machine is gone: {why}"
            self._over(bake, BakePhase.DONE if ready else BakePhase.FAILED, text)
        elif bake.phase is BakePhase.INSTALLING:
            await self._install(bake, machine, late_s)
        else:
            await self._copy(bake, machine, late_s)

    async def _install(self, bake: Bake, machine: Machine, late_s: float) -> None:
        """Some clouds show no console of a machine that is off: it stays on for a while when it is complete."""
        if machine.phase is not Phase.BOOTING:
            return  # the plan orders it
        late = f"not complete within {INSTALL_MAX_S:g} s" if late_s > INSTALL_MAX_S else ""
        try:
            off = (await self._providers[bake.provider].get(_handle(machine))).state is InstanceState.STOPPED
            text = "" if bake.slurm else await self._console(machine, off=off)
        except ProviderError as error:
            if not late:
                raise
            self._over(bake, BakePhase.FAILED, f"{late}, and its console cannot be read: {error}")
            return
        if failed := plan.FAILED.search(text):
            self._over(bake, BakePhase.FAILED, failed[1])
            return
        if ready := plan.READY.search(text):
            words = f"its machine is complete, with Slurm {ready[1]}"
            bake = self._bakes.change(
                bake.name, words, self._now(), slurm=ready[1], tailscale=ready[2], reason=words
            )  # fmt: skip
        if bake.slurm and off:
            bake = self._bakes.change(
                bake.name, f"its machine is off: {bake.provider} copies its disk", self._now(),
                phase=BakePhase.COPYING, phase_since=self._now(), reason="its disk is copied",
            )  # fmt: skip
            await self._copy(bake, machine, 0.0)
        elif late:
            self._over(bake, BakePhase.FAILED, f"{late}; see its console")

    async def _console(self, machine: Machine, *, off: bool) -> str:
        """What it wrote; "" where its cloud shows no console of a machine that is off.

        Raises:
            ProviderError: the console cannot be read now.
        """
        provider = self._providers[machine.provider]
        if not isinstance(provider, Console):
            return ""
        try:
            return await provider.console(_handle(machine))
        except Transient:
            if off:
                return ""
            raise

    async def _copy(self, bake: Bake, machine: Machine, late_s: float) -> None:
        provider = self._providers[bake.provider]
        assert isinstance(provider, ImageBaker)
        found = next((one for one in self.images.get(bake.provider, ()) if one.name == bake.name), None)
        if found is not None and found.state is ImageState.AVAILABLE:
            self._over(bake, BakePhase.DONE, f"{found.id} is ready")
        elif found is not None and found.state is ImageState.FAILED:
            self._over(bake, BakePhase.FAILED, f"{bake.provider} could not copy the disk: {found.reason}")
        elif late_s > COPY_MAX_S:
            self._over(bake, BakePhase.FAILED, f"{bake.provider} did not copy the disk within {COPY_MAX_S / 3600:g} h")
        elif found is None:
            await self._create(bake, machine, provider)

    async def _create(self, bake: Bake, machine: Machine, provider: ImageBaker) -> None:
        """Have the disk copied. An image that no listing has yet is not made twice: the name leads to the first one.

        Where the first call's image is not there because the cloud could not make it, the same call says so.
        """
        try:
            image = await provider.create_image(ImageRequest(bake.name, _handle(machine), self._tags(bake)))
        except (InvalidRequest, NotFound) as error:
            self._over(bake, BakePhase.FAILED, str(error))
            return
        if image.id != bake.image_id:
            self._bakes.change(bake.name, f"{bake.provider} makes {image.id}", self._now(), image_id=image.id)

    def _tags(self, bake: Bake) -> dict[str, str]:
        return {
            CLUSTER_TAG: self._cluster, IMAGE_TAG: bake.name, PARTS_TAG: bake.parts, SLURM_TAG: bake.slurm,
            TAILSCALE_TAG: bake.tailscale,
        }  # fmt: skip

    def _over(self, bake: Bake, phase: BakePhase, reason: str) -> None:
        """Write down how it ended. The machine first: were meshd killed in between, it would be found gone."""
        machine = self._machine_store.journal.machine(bake.name)
        if machine is not None and machine.phase is not Phase.GONE and machine.removal is None:
            words = f"its image is {phase.value}"
            self._machine_store.change(
                machine.name, EventKind.REMOVE, words, removal=Removal.FORCED, reason=words
            )  # fmt: skip
        (log.info if phase is BakePhase.DONE else log.warning)("bake_over", image=bake.name, reason=reason)
        self._bakes.change(bake.name, reason, self._now(), phase=phase, phase_since=self._now(), reason=reason)

    def _now(self) -> datetime:
        return self._machine_store.now()


def _handle(machine: Machine) -> Instance:
    return Instance(
        ProviderName(machine.provider), InstanceId(machine.instance_id), machine.name, InstanceState.UNKNOWN,
        region=machine.region or machine.offer.region,
    )  # fmt: skip
