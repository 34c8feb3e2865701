"""What people ask about images: bake one, list them, delete old ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from secrets import choice

from meshd import gpus
from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.api.faults import Refused, Unknown
from meshd.codes import RefusalCode
from meshd.daemon.images.controller import ImageController
from meshd.daemon.machine_store import MachineStore
from meshd.errors import ProviderError
from meshd.model.desired import Desired, Pool
from meshd.model.ids import UNIQUE_ALPHABET, UNIQUE_LENGTH, PoolName, SlotName, machine_name
from meshd.model.image import SLURM_TAG, TAILSCALE_TAG, Bake, BakePhase
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Snapshot
from meshd.plan import images as plan
from meshd.plan.budget import room as budget_room
from meshd.plan.prices import price_words
from meshd.provider_api import ImageBaker, Offer, Provider
from meshd.store.bakes import Bakes

SLOT = 0
"""The machines of images have the slot before a pool's first: no pool has it, so that nothing takes them for nodes."""


class ImageService:
    """Answers IMAGES, BAKE_IMAGE and PRUNE_IMAGES.

    Args:
        bakes: the journal's.
        machine_store: the machines.
        controller: makes the images.
        providers: the enabled ones.
        desired: the pools as they are wanted now.
        snapshot: what every source said last: the offers.
        script: the user data of a machine, with the packages of all pools, and its digest.
        slurm_version: the head's; "" while it is not known.
    """

    def __init__(
        self,
        bakes: Bakes,
        machine_store: MachineStore,
        controller: ImageController,
        providers: Mapping[str, Provider],
        *,
        desired: Callable[[], Desired],
        snapshot: Callable[[], Snapshot],
        script: Callable[[], tuple[str, str]],
        slurm_version: Callable[[], str],
    ) -> None:
        self._bakes = bakes
        self._machine_store = machine_store
        self._controller = controller
        self._providers = providers
        self._desired = desired
        self._snapshot = snapshot
        self._script = script
        self._slurm_version = slurm_version

    async def bake(self, request: s.BakeRequest, actor: Actor) -> s.BakeAnswer:
        """Order a machine, of which an image is made."""
        self._not_while_frozen()
        pool = self._pool(request)
        offer = self._offer(request, pool)
        region = "" if self._providers[offer.provider].capabilities.global_images else offer.region
        place = _place(offer.provider, region, offer.arch)
        if other := next((b for b in self._bakes.active() if _place(b.provider, b.region, b.arch) == place), None):
            raise Refused(
                f"{other.name} is being made there since {other.begun_at:%H:%M} UTC", "see `meshctl image list`",
                code=RefusalCode.IMAGE_ACTIVE,
            )  # fmt: skip
        self._afford(pool, offer)
        answer = s.BakeAnswer(
            name="", provider=offer.provider, region=offer.region, arch=offer.arch,
            instance_type=offer.instance_type, usd_per_hour=offer.usd_per_hour, pool=pool.name,
        )  # fmt: skip
        if request.dry_run:
            return answer
        now, (script, parts) = self._now(), self._script()
        unique = "".join(choice(UNIQUE_ALPHABET) for _ in range(UNIQUE_LENGTH))
        slot = SlotName(f"{pool.name}-{SLOT}")
        name = machine_name(self._desired().cluster, slot, unique)
        reason = f"{actor.user} wants an image for {place}"
        with self._machine_store.journal.together():
            self._bakes.put(
                Bake(
                    name=name, provider=offer.provider, region=region, arch=offer.arch,
                    phase=BakePhase.INSTALLING, begun_at=now, phase_since=now, script=script, parts=parts,
                    reason="its machine is ordered", by=actor.user,
                ),
                reason, now,
            )  # fmt: skip
            self._machine_store.new(
                Machine(
                    name=name, pool=PoolName(pool.name), slot=slot, provider=offer.provider, offer=offer,
                    phase=Phase.REQUESTED, phase_since=now, created_at=now, reason=reason, region=offer.region,
                    baking=True,
                ),
                f"{reason}; {price_words(offer)}",
            )  # fmt: skip
        self._controller.wake()
        return answer.model_copy(update={"name": name})

    async def images(self) -> s.ImagesView:
        """All images and what is being made, newest first."""
        return self._view()

    async def prune(self, request: s.PruneRequest, actor: Actor) -> s.PruneAnswer:
        """Delete old images."""
        if not request.dry_run:
            self._not_while_frozen()
        await self._controller.look()
        images = self._controller.all()
        doomed = list(plan.prunable(images, self._used(), self._bakes.all(), with_newest=request.newest))
        doomed = [one for one in doomed if not request.provider or one.provider == request.provider]
        rows = {row.id: row for row in self._view().images}
        failed: list[str] = []
        if not request.dry_run:
            for image in doomed:
                try:
                    await self._controller.delete(image, f"{actor.user} prunes images, and no machine runs from it")
                except ProviderError as error:
                    failed.append(f"{image.id}: {error}")
            await self._controller.look()
        return s.PruneAnswer(images=[rows[one.id] for one in doomed], failed=failed, unread=self._unread())

    # -- inside ---------------------------------------------------------------------------------------------------

    def _view(self) -> s.ImagesView:
        used: dict[str, list[str]] = {}
        for machine in self._machine_store.journal.machines():
            if machine.image:
                used.setdefault(machine.image, []).append(machine.name)
        images, rows = self._controller.all(), []
        wanted = plan.Wanted(self._script()[1], self._slurm_version())
        for one in images:
            best = plan.newest(images, one.provider, one.region, one.arch)
            rows.append(
                s.ImageRow(
                    id=one.id, name=one.name, provider=one.provider, region=one.region, arch=one.arch,
                    state=one.state.value, created_at=one.created_at, size_gib=one.size_gib,
                    usd_per_month=one.usd_per_month, slurm=one.tags.get(SLURM_TAG, ""),
                    tailscale=one.tags.get(TAILSCALE_TAG, ""), stale=plan.stale_words(one, wanted),
                    newest=best is not None and best.id == one.id, machines=sorted(used.get(one.id, ())),
                    reason=self._controller.refusal(one) or one.reason,
                )
            )  # fmt: skip
        rows.sort(key=lambda row: (row.created_at is not None, row.created_at, row.id), reverse=True)
        return s.ImagesView(
            at=self._now(), images=rows, unread=self._unread(),
            bakes=[
                s.BakeRow(
                    name=b.name, provider=b.provider, region=b.region, arch=b.arch, phase=b.phase.value,
                    since=b.phase_since, begun_at=b.begun_at, image_id=b.image_id, reason=b.reason,
                )
                for b in reversed(self._bakes.all())
            ],
        )  # fmt: skip

    def _not_while_frozen(self) -> None:
        if (freeze := self._controller.freeze()) is not None:
            raise Refused(freeze.words, "`meshctl thaw`", code=RefusalCode.FROZEN)

    def _unread(self) -> list[str]:
        return [f"{name}: {why}" for name, why in sorted(self._controller.unread.items())]

    def _used(self) -> set[str]:
        return {m.image for m in self._machine_store.journal.machines() if m.image}

    def _pool(self, request: s.BakeRequest) -> Pool:
        if request.provider not in self._controller.bakers:
            known = ", ".join(sorted(self._controller.bakers)) or "none of the enabled ones"
            raise Unknown(
                f"{request.provider} makes no images", f"providers that do: {known}",
                code=RefusalCode.NO_SUCH_PROVIDER,
            )  # fmt: skip
        pools = [one for one in self._desired().pools.values() if request.provider in one.providers]
        if not request.pool and pools:
            return pools[0]
        found = next((one for one in pools if one.name == request.pool), None)
        if found is None:
            raise Unknown(
                f"no pool {request.pool} rents from {request.provider}",
                f"pools that do: {', '.join(one.name for one in pools) or 'none'}", code=RefusalCode.NO_SUCH_POOL,
            )  # fmt: skip
        return found

    def _offer(self, request: s.BakeRequest, pool: Pool) -> Offer:
        """The cheapest machine where the pool's cheapest one is: what it has does not matter, where it is does."""
        offers = [one for one in self._snapshot().known_offers if one.provider == request.provider and not one.spot]
        there = [
            one
            for one in offers
            if gpus.matches(pool.gpu, one.gpu)
            and (not pool.regions or {one.region, one.zone} & set(pool.regions))
            and request.region in ("", one.region)
        ]
        nearest = min(there, key=lambda one: (one.usd_per_gpu_hour, one.key), default=None)
        if nearest is None:
            where = f" in {request.region}" if request.region else ""
            raise Refused(
                f"{request.provider} offers nothing on demand for {pool.name}{where}",
                "see `meshctl offers`", code=RefusalCode.NO_ROOM,
            )  # fmt: skip
        same = (one for one in offers if (one.region, one.arch) == (nearest.region, nearest.arch))
        offer = min(same, key=lambda one: (one.usd_per_hour, one.key))
        provider = self._providers[request.provider]
        assert isinstance(provider, ImageBaker)
        if named := provider.named_image(nearest):
            raise Refused(
                f"the settings name {named} for {nearest.instance_type} in {nearest.region}: no other would be used",
                f"take it out of providers.{request.provider}.images, and reload", code=RefusalCode.IMAGE_NAMED,
            )  # fmt: skip
        return offer

    def _afford(self, pool: Pool, offer: Offer) -> None:
        room = budget_room(self._desired().budget, pool.name, pool.providers, self._now())
        if room is not None and room.usd_per_hour < offer.usd_per_hour:
            raise Refused(
                f"{offer.instance_type} costs {offer.usd_per_hour:.2f} USD per hour: {room.binding.words}",
                f"raise {room.binding.setting}, or wait", code=RefusalCode.NO_ROOM,
            )  # fmt: skip

    def _now(self) -> datetime:
        return self._machine_store.now()


def _place(provider: str, region: str, arch: str) -> str:
    return f"{provider}/{region or 'all regions'}/{arch}"
