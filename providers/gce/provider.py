"""The Compute Engine adapter: glue between the contract, the catalogue and the client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from meshd.errors import AuthFailed, InvalidRequest, NotFound, ProviderError, Transient, Uncertain
from meshd.price_list import PriceList, collected
from meshd.provider_api import (
    BilledKind,
    BilledListing,
    GangRequest,
    Image,
    ImageId,
    ImageRequest,
    ImageState,
    Instance,
    InstanceState,
    LaunchRequest,
    Offer,
    ProviderCapabilities,
    ProviderContext,
    ProviderName,
)
from meshd.runtime.backoff import backoff_s
from providers._billed import each, listing
from providers._fresh import Freshness
from providers._prices import PriceTables, shipped
from providers._reads import all_of
from providers._settings import parse
from providers.gce.billed import billed_address, billed_image, billed_machine, billed_snapshot, billed_volume
from providers.gce.brochure import capabilities
from providers.gce.catalogue import Catalogue
from providers.gce.check import PermissionCheck
from providers.gce.client import Gce, Row
from providers.gce.errors import GCE, NOT_READY, TAKEN, refusal_of_image, refusal_of_operation, to_error
from providers.gce.images import boot_disk, image_body, is_image_of, named_image, to_image
from providers.gce.mapping import (
    AbsenceCause,
    bulk_body,
    cluster_filter,
    explain_absence,
    gang_filter,
    gone,
    insert_body,
    is_granted,
    is_ours,
    is_spot,
    last_part,
    preempted,
    region_of,
    request_id,
    split_id,
    to_id,
    to_instance,
    type_of,
)
from providers.gce.prices import NOTE, machine_rates, to_rate
from providers.gce.settings import GceSettings

CONSOLE_MAX_B = 64 * 1024
_OFF = frozenset({InstanceState.TERMINATING, InstanceState.STOPPED})
_ENDING = frozenset({InstanceState.TERMINATING, InstanceState.PREEMPTED, InstanceState.GONE})
POLL_FIRST_S = 0.25
POLL_MAX_S = 3.0


class GceProvider:
    """Compute Engine behind the contract `meshd.provider_api.Provider`."""

    def __init__(self, context: ProviderContext, settings: GceSettings, gce: Gce) -> None:
        self._cluster = context.cluster
        self._settings = settings
        self._gce = gce
        self._check = PermissionCheck(context.cluster, settings, gce)
        self._fresh = Freshness(context.now, settings.fresh_s)
        self._now = context.now
        prices = PriceTables(shipped("providers.gce"), context.fetched_prices)
        self._catalogue = Catalogue(gce, settings, prices, context.now)

    @property
    def name(self) -> ProviderName:
        """Always "gce"."""
        return GCE

    @property
    def capabilities(self) -> ProviderCapabilities:
        """Virtual machines. A machine that powers itself off keeps its disk, which still costs money.

        User data is metadata: every process on the machine and every viewer of the project can read it.
        """
        return capabilities(self._settings)

    async def offers(self) -> Sequence[Offer]:
        """Types in zones, with prices. `available` is None: Google does not report free capacity."""
        return await self._catalogue.offers()

    async def launch(self, request: LaunchRequest) -> Instance:
        """instances.insert, then its operation for a while, because only that reports a lack of capacity.

        A second launch with the same name returns the first machine: the request id is the same, and a name is unique
        in its zone. A machine that has ended is returned as GONE.
        """
        zone, name = request.offer.zone, request.token
        try:
            operation = await self._gce.insert(zone, insert_body(request, self._settings), request_id(name))
            self._fresh.see(to_id(zone, name))
            (instance,) = await self._wait_for_capacity(request.offer, (name,), operation)
            return instance
        except InvalidRequest as error:
            if not error.text.startswith(TAKEN):
                raise
            return await self._holder(request, error)
        except AuthFailed as error:
            raise refusal_of_image(error, request.image) from error

    async def launch_gang(self, request: GangRequest) -> Sequence[Instance]:
        """instances.bulkInsert with minCount = count, then its operation for a while, as `launch`.

        Google removes what it made when it cannot make all: the operation fails, with VM_MIN_COUNT_NOT_REACHED or the
        cause. A second launch with the same id returns the first machines, as `launch`.
        """
        zone, names = request.offer.zone, request.tokens
        try:
            operation = await self._gce.bulk_insert(zone, bulk_body(request, self._settings), request_id(request.id))
            for name in names:
                self._fresh.see(to_id(zone, name))
            return await self._wait_for_capacity(request.offer, names, operation, gang_filter(request.id))
        except InvalidRequest as error:
            if not error.text.startswith(TAKEN):
                raise
            found = await self._find(zone, names, gang_filter(request.id))
            if all(name in found and is_ours(found[name], self._cluster) for name in names):
                return [self._instance(found[name]) for name in names]
            text = f"one of the names is used in {zone}, and not all machines of the gang are there"
            raise Uncertain(text, provider=GCE, operation="launch", vendor_text=error.vendor_text) from error
        except AuthFailed as error:
            raise refusal_of_image(error, request.image) from error

    async def _wait_for_capacity(
        self, offer: Offer, names: Sequence[str], operation: Row, wanted: str = ""
    ) -> list[Instance]:
        """The machines when all have capacity, or after `insert_wait_s`.

        Args:
            offer: of each.
            names: theirs.
            operation: of the call that makes them.
            wanted: the filter that finds them together; "" reads the only one by its name.

        Raises:
            ProviderError: the operation failed.
        """
        clock, polls = asyncio.get_running_loop().time, 0
        until_s = clock() + self._settings.insert_wait_s
        while True:
            refusal = refusal_of_operation(operation)
            if refusal is not None:
                raise to_error(refusal, operation="launch", changes=True)
            found = await self._find(offer.zone, names, wanted)
            done = operation.get("status") == "DONE"
            if len(found) == len(names) and (done or all(is_granted(raw) for raw in found.values())):
                return [to_instance(found[name], offer.usd_per_hour) for name in names]
            if done:
                missing = await all_of(self._after_insert(offer, name) for name in names if name not in found)
                return self._known(offer, names, found, {instance.token: instance for instance in missing})
            if clock() >= until_s:
                return self._known(offer, names, found, {})
            polls += 1
            await asyncio.sleep(backoff_s(polls, POLL_FIRST_S, POLL_MAX_S))
            try:
                operation = await self._gce.operation(offer.zone, str(operation["name"]))
            except ProviderError:
                continue

    def _known(
        self, offer: Offer, names: Sequence[str], found: Mapping[str, Row], others: Mapping[str, Instance]
    ) -> list[Instance]:
        """What is known of each machine: as read, else as found out, else as accepted."""
        return [
            to_instance(found[name], offer.usd_per_hour)
            if name in found
            else others.get(name) or self._accepted(offer, name)
            for name in names
        ]

    async def _find(self, zone: str, names: Sequence[str], wanted: str) -> dict[str, Row]:
        """By name, the machines that can be read now."""
        try:
            if not wanted:
                return {names[0]: await self._gce.instance(zone, names[0])}
            rows = await self._gce.instances(wanted, "launch")
        except ProviderError:
            return {}  # a failed read does not change that the create call was accepted
        return {str(raw["name"]): raw for raw in rows if last_part(raw.get("zone")) == zone and raw["name"] in names}

    async def _after_insert(self, offer: Offer, name: str) -> Instance:
        """The machine of an insert that succeeded, when it is not found: it was deleted since, or does not show yet."""
        accepted = self._accepted(offer, name)
        try:
            absence = explain_absence(await self._gce.operations_on(offer.zone, name, "launch"))
        except ProviderError:
            return accepted
        return gone(accepted.id, absence) if absence.cause is AbsenceCause.ENDED else accepted

    def _accepted(self, offer: Offer, name: str) -> Instance:
        return Instance(
            provider=GCE,
            id=to_id(offer.zone, name),
            token=name,
            state=InstanceState.BOOTING,
            region=region_of(offer.zone),
            instance_type=offer.instance_type,
            spot=offer.spot,
            usd_per_hour=offer.usd_per_hour,
        )

    async def _holder(self, request: LaunchRequest, error: InvalidRequest) -> Instance:
        try:
            raw = await self._gce.instance(request.offer.zone, request.token, "launch")
        except ProviderError as unread:
            text = f"the name is used, and its machine cannot be read: {unread.text}"
            raise Uncertain(text, provider=GCE, operation="launch", vendor_text=error.vendor_text) from error
        if is_ours(raw, self._cluster):
            return self._instance(raw)
        text = f"{request.token} is used in {request.offer.zone} by a machine that is not of this cluster"
        raise InvalidRequest(text, provider=GCE, operation="launch", vendor_text=error.vendor_text) from error

    async def get(self, instance: Instance) -> Instance:
        """instances.get. When there is no machine, the operations say how it ended.

        Raises:
            NotFound: Google knows neither the machine nor its end, and it is not new.
            Transient: Google does not know the machine yet.
        """
        zone, name = split_id(instance.id, "get")
        try:
            return await self._with_cause(self._instance(await self._gce.instance(zone, name)))
        except NotFound as error:
            return await self._missing(instance, error)

    async def _missing(self, instance: Instance, error: NotFound) -> Instance:
        zone, name = split_id(instance.id, error.operation)
        try:
            absence = explain_absence(await self._gce.operations_on(zone, name, error.operation))
        except ProviderError:
            raise self._fresh.error_for(instance, error) from error
        if absence.cause in (AbsenceCause.ENDED, AbsenceCause.NEVER_MADE):
            return gone(instance.id, absence)
        raise self._fresh.error_for(instance, error) from error

    async def _with_cause(self, instance: Instance) -> Instance:
        """The instance, as PREEMPTED when it is a spot machine and the operations say so."""
        if not instance.spot or instance.state not in _OFF:
            return instance
        zone, name = split_id(instance.id, "get")
        try:
            operations = await self._gce.operations_on(zone, name, "get")
        except ProviderError:
            return instance
        if not preempted(operations):
            return instance
        return replace(instance, state=InstanceState.PREEMPTED, reason="Google preempted the spot machine")

    async def list(self) -> Sequence[Instance]:
        """instances.aggregatedList by the cluster's label, in all zones of the project."""
        rows = await self._gce.instances(cluster_filter(self._cluster))
        found = [self._instance(raw) for raw in rows if is_ours(raw, self._cluster)]
        for instance in found:
            self._fresh.see(instance.id)
        return await all_of(self._with_cause(instance) for instance in found)

    async def terminate(self, instance: Instance) -> None:
        """instances.delete, which can be repeated."""
        zone, name = split_id(instance.id, "terminate")
        try:
            refusal = refusal_of_operation(await self._gce.delete(zone, name))
        except NotFound as error:
            await self._missing(instance, error)
            return
        except Transient as error:
            if not error.text.startswith(NOT_READY) or (await self.get(instance)).state not in _ENDING:
                raise
            return
        if refusal is not None:
            raise to_error(refusal, operation="terminate", changes=True)

    async def console(self, instance: Instance) -> str:
        """instances.getSerialPortOutput, as long as the machine runs.

        Raises:
            Transient: the machine is off: Google then shows no console.
            NotFound: Google does not know the machine.
            AuthFailed: the credentials lack compute.instances.getSerialPortOutput.
        """
        zone, name = split_id(instance.id, "console")
        return await self._gce.serial_port(zone, name, CONSOLE_MAX_B)

    async def billed(self) -> Sequence[BilledListing]:
        """Instances, disks, static addresses, own images and snapshots of the whole project."""
        machine = partial(billed_machine, price=self._usd_of)
        image = partial(billed_image, usd_per_gib_month=self._settings.image_usd_per_gib_month)
        return await all_of(
            [
                listing(GCE, BilledKind.MACHINE, each(self._gce.instances("", "billed"), machine)),
                listing(GCE, BilledKind.VOLUME, each(self._gce.disks(), billed_volume)),
                listing(GCE, BilledKind.ADDRESS, each(self._gce.addresses(), billed_address)),
                listing(GCE, BilledKind.IMAGE, each(self._gce.images("", dict, "billed"), image)),
                listing(GCE, BilledKind.SNAPSHOT, each(self._gce.snapshots(), billed_snapshot)),
            ]
        )

    def _usd_of(self, region: str, kind: str, spot: bool) -> float | None:
        price = self._catalogue.price(region, kind, spot=spot)
        return price.usd_per_hour if price else None

    def named_image(self, offer: Offer) -> str:
        """Of `images` in the settings."""
        return named_image(self._settings, offer)

    async def create_image(self, request: ImageRequest) -> Image:
        """images.insert of the machine's boot disk. A name that is taken leads to the image that has it.

        A repeated call with the same request id gets the operation of the first one, which says whether it failed.

        Raises:
            InvalidRequest: the machine has no disk, or Google could not make the image.
        """
        zone, name = split_id(request.instance.id, "create_image")
        disk = boot_disk(await self._gce.instance(zone, name, "create_image"))
        if not disk:
            raise InvalidRequest(f"{name} shows no boot disk", provider=GCE, operation="create_image")
        try:
            operation = await self._gce.insert_image(image_body(request, disk), request_id(f"image:{request.name}"))
        except InvalidRequest as error:
            if not error.text.startswith(TAKEN):
                raise
            return await self._image_of(request, error)
        refusal = refusal_of_operation(operation)
        if refusal is not None:
            raise self._no_image(to_error(refusal, operation="create_image", changes=True))
        return Image(
            GCE, ImageId(request.name), request.name, ImageState.PENDING, "", created_at=self._now(), tags=request.tags
        )

    def _no_image(self, error: ProviderError) -> ProviderError:
        """The error of an operation that failed: there is no image, also where the same error leaves a call unclear."""
        if not isinstance(error, (Uncertain, Transient, NotFound)):
            return error
        text = f"Google could not make it: {error.text}"
        return InvalidRequest(text, provider=GCE, operation="create_image", vendor_text=error.vendor_text)

    async def _image_of(self, request: ImageRequest, error: InvalidRequest) -> Image:
        raw = await self._gce.image(request.name, "create_image")
        if is_image_of(raw, self._cluster):
            return to_image(raw, self._settings.image_usd_per_gib_month)
        text = f"{request.name} is the name of an image that is not of this cluster"
        raise InvalidRequest(text, provider=GCE, operation="create_image", vendor_text=error.vendor_text) from error

    async def images(self) -> Sequence[Image]:
        """images.list by the cluster's label: the project's own, all regions."""
        usd = self._settings.image_usd_per_gib_month

        def read(raw: Row) -> Image | None:
            return to_image(raw, usd) if is_image_of(raw, self._cluster) else None

        found = await self._gce.images(cluster_filter(self._cluster), read)
        return [image for image in found if image is not None]

    async def delete_image(self, image: Image) -> None:
        """images.delete."""
        try:
            refusal = refusal_of_operation(await self._gce.delete_image(image.id))
        except NotFound:
            return
        if refusal is not None:
            raise to_error(refusal, operation="delete_image", changes=True)

    async def fetch_prices(self) -> PriceList:
        """Prices of the wanted types, computed from the SKUs of the Cloud Billing Catalog.

        Raises:
            AuthFailed: the Cloud Billing API is disabled in the project, or the credentials are refused.
        """
        at = self._now()
        kinds = await self._catalogue.types()
        skus = await self._gce.skus(partial(to_rate, regions=frozenset(self._settings.regions)))
        return collected(machine_rates(kinds, skus), at, NOTE)

    async def check(self) -> str:
        """The project and identity of the credentials, and whether permissions are missing."""
        return await self._check()

    async def aclose(self) -> None:
        """Close connections and threads."""
        await self._gce.aclose()

    def _instance(self, raw: Row) -> Instance:
        region = region_of(last_part(raw.get("zone")))
        price = self._catalogue.price(region, type_of(raw), spot=is_spot(raw))
        return to_instance(raw, price.usd_per_hour if price else None)


def create(context: ProviderContext) -> GceProvider:
    """Entry point of `meshd.providers`.

    Raises:
        ConfigError: the table is invalid; one line per problem.
        ImportError: the SDK is not installed.
    """
    settings = parse(GceSettings, context.settings, "[providers.gce]")
    return GceProvider(context, settings, Gce(settings))
