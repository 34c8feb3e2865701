"""The EC2 adapter: glue between the contract, the catalogue and the client."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from meshd.errors import InvalidRequest, NotFound, ProviderError, Transient, Uncertain
from meshd.price_list import PriceList, collected
from meshd.provider_api import (
    IMAGE_TAG,
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
from providers._billed import each, listing
from providers._fresh import Freshness
from providers._prices import PriceTables, shipped
from providers._reads import all_of
from providers._settings import parse
from providers.aws.billed import billed_address, billed_image, billed_machine, billed_snapshot, billed_volume
from providers.aws.brochure import capabilities
from providers.aws.catalogue import Catalogue
from providers.aws.check import PermissionCheck
from providers.aws.client import Ec2, Row
from providers.aws.errors import AWS, IMAGE_TAKEN, TOKEN_TAKEN, TOKEN_USED_UP
from providers.aws.mapping import (
    cluster_filter,
    gang_filter,
    gang_parameters,
    image_parameters,
    leftovers,
    named_by_index,
    run_parameters,
    to_image,
    to_instance,
    to_leftover,
    token_filter,
)
from providers.aws.prices import NOTE, rates
from providers.aws.settings import AwsSettings

REGIONS_AT_ONCE = 4
"""How many regions `billed` asks at once: creating the client of a region takes CPU time."""


class AwsProvider:
    """EC2 behind the contract `meshd.provider_api.Provider`."""

    def __init__(self, context: ProviderContext, settings: AwsSettings, ec2: Ec2) -> None:
        self._cluster = context.cluster
        self._settings = settings
        self._ec2 = ec2
        self._fresh = Freshness(context.now, settings.fresh_s)
        self._now = context.now
        prices = PriceTables(shipped("providers.aws"), context.fetched_prices)
        self._catalogue = Catalogue(ec2, settings, prices, context.now)
        self._check = PermissionCheck(context.cluster, settings, ec2, self._catalogue, context.now)

    @property
    def name(self) -> ProviderName:
        """Always "aws"."""
        return AWS

    @property
    def capabilities(self) -> ProviderCapabilities:
        """Virtual machines; spot when the settings allow it.

        Every process on a machine can read its user data from the metadata service, and so can everybody who may call
        DescribeInstanceAttribute.
        """
        return capabilities(self._settings)

    async def offers(self) -> Sequence[Offer]:
        """Types in zones, with prices. `available` is None: EC2 does not report free capacity."""
        return await self._catalogue.offers(spot=self._settings.spot)

    async def launch(self, request: LaunchRequest) -> Instance:
        """RunInstances with the machine's name as client token.

        A second launch with the same name returns the first machine. EC2 refuses it when the parameters differ; the
        machine is then found by its tag. A machine that has ended is returned as GONE.
        """
        region = request.offer.region
        image = await self._catalogue.image(region, request.offer.arch, request.image)
        try:
            (raw,) = await self._ec2.run_instances(region, run_parameters(request, self._settings, image))
        except ProviderError as error:
            if not error.text.startswith((TOKEN_TAKEN, TOKEN_USED_UP)):
                raise
            return await self._holder_of(request.token, region, error)
        instance = to_instance(raw, region, request.offer.usd_per_hour)
        self._fresh.see(instance.id)
        return instance

    async def _holder_of(self, token: str, region: str, error: ProviderError) -> Instance:
        read = partial(self._instance, region)
        found = await self._ec2.instances(region, token_filter(token), read, "launch")
        live = [instance for instance in found if instance.state is not InstanceState.GONE]
        for instance in live or found:
            return instance
        if error.text.startswith(TOKEN_USED_UP):
            raise InvalidRequest(
                "this name was used for a machine that has ended", provider=AWS, operation="launch"
            ) from error
        text = "the name is used, but its machine cannot be found yet"
        raise Uncertain(text, provider=AWS, operation="launch", vendor_text=error.vendor_text) from error

    async def launch_gang(self, request: GangRequest) -> Sequence[Instance]:
        """RunInstances with MinCount = MaxCount: EC2 launches all in one zone, or none.

        All machines have the same tags. Each one's name follows from the gang's tag and its AmiLaunchIndex, which every
        answer has. A second launch with the same id returns the first machines; those that have ended as GONE.
        """
        region = request.offer.region
        image = await self._catalogue.image(region, request.offer.arch, request.image)
        try:
            rows = await self._ec2.run_instances(region, gang_parameters(request, self._settings, image))
        except ProviderError as error:
            if not error.text.startswith((TOKEN_TAKEN, TOKEN_USED_UP)):
                raise
            found = await self._ec2.instances(
                region, gang_filter(request.id), partial(self._instance, region), "launch"
            )  # fmt: skip
            return _in_order(request, found, error)
        made = [named_by_index(to_instance(raw, region, request.offer.usd_per_hour), raw, request.id) for raw in rows]
        for instance in made:
            self._fresh.see(instance.id)
        return _in_order(request, made)

    async def get(self, instance: Instance) -> Instance:
        """DescribeInstances by id.

        Raises:
            NotFound: EC2 does not know the machine, and it is not new.
            Transient: EC2 does not know the machine yet (eventual consistency).
        """
        region = self._region_of(instance, "get")
        try:
            raw = await self._ec2.instance(region, instance.id)
        except NotFound as error:
            raise self._fresh.error_for(instance, error) from error
        if raw is None:
            raise self._fresh.error_for(instance, NotFound("not in the answer", provider=AWS, operation="get"))
        return self._instance(region, raw)

    async def list(self) -> Sequence[Instance]:
        """DescribeInstances by the cluster's tag in all regions. Ended machines stay listed for about an hour."""
        filters = cluster_filter(self._cluster)
        regions = self._settings.regions
        parts = await all_of(
            self._ec2.instances(region, filters, partial(self._instance, region)) for region in regions
        )
        instances = [instance for part in parts for instance in part]
        for instance in instances:
            self._fresh.see(instance.id)
        return instances

    async def terminate(self, instance: Instance) -> None:
        """TerminateInstances, which can be repeated."""
        region = self._region_of(instance, "terminate")
        try:
            await self._ec2.terminate(region, instance.id)
        except NotFound as error:
            raise self._fresh.error_for(instance, error) from error

    async def console(self, instance: Instance) -> str:
        """GetConsoleOutput, for about an hour also after the instance was terminated.

        Raises:
            NotFound: EC2 does not know the machine.
            AuthFailed: the credentials lack ec2:GetConsoleOutput.
        """
        return await self._ec2.console(self._region_of(instance, "console"), instance.id)

    def named_image(self, offer: Offer) -> str:
        """Of `images` in the settings."""
        return self._catalogue.named_image(offer.region, offer.arch)

    async def create_image(self, request: ImageRequest) -> Image:
        """CreateImage. A name that is taken leads to the image that has it.

        Raises:
            Transient: EC2 does not show that image yet.
        """
        region, usd = self._region_of(request.instance, "create_image"), self._settings.image_usd_per_gib_month
        try:
            image_id = await self._ec2.create_image(region, image_parameters(request))
        except ProviderError as error:
            if not error.text.startswith(IMAGE_TAKEN):
                raise
            filters = [*cluster_filter(self._cluster), {"Name": "name", "Values": [request.name]}]
            found = await self._ec2.own_images(region, filters, "create_image")
            if not found:
                text = "the name is used, but its image cannot be found yet"
                raise Transient(text, provider=AWS, operation="create_image", vendor_text=error.vendor_text) from error
            return to_image(found[0], region, usd)
        return Image(
            AWS, ImageId(image_id), request.name, ImageState.PENDING, region, created_at=self._now(), tags=request.tags
        )

    async def images(self) -> Sequence[Image]:
        """DescribeImages and DescribeSnapshots by the cluster's tag in all regions."""
        parts = await all_of(self._images_of(region) for region in self._settings.regions)
        return [image for part in parts for image in part]

    async def _images_of(self, region: str) -> Sequence[Image]:
        filters, usd = cluster_filter(self._cluster), self._settings.image_usd_per_gib_month
        # Snapshots first: of an image that appears meanwhile, the listing of images has the name.
        snapshots = await self._ec2.own_snapshots(region, filters)
        images = await self._ec2.own_images(region, filters)
        return [
            *(to_image(row, region, usd) for row in images),
            *(to_leftover(row, region, usd) for row in leftovers(images, snapshots)),
        ]

    async def delete_image(self, image: Image) -> None:
        """DeregisterImage, then DeleteSnapshot for each snapshot of the image: EC2 takes no other order."""
        snapshots = [str(image.id)] if image.state is ImageState.LEFTOVER else []
        if not snapshots:
            filters = [*cluster_filter(self._cluster), {"Name": f"tag:{IMAGE_TAG}", "Values": [image.name]}]
            found = await self._ec2.own_snapshots(image.region, filters, "delete_image")
            snapshots = [str(row["SnapshotId"]) for row in found]
            with suppress(NotFound):
                await self._ec2.deregister_image(image.region, image.id)
        for snapshot in snapshots:
            with suppress(NotFound):
                await self._ec2.delete_snapshot(image.region, snapshot)

    async def billed(self) -> Sequence[BilledListing]:
        """Instances, volumes, Elastic IP addresses, own images and snapshots, in each region that the account has.

        Also in those that `regions` does not name: a machine may lie where meshd rented before, or where somebody else
        rents. Where the account's regions cannot be read, one listing says so.
        """
        of_settings = frozenset(self._settings.regions)
        listings: list[BilledListing] = []
        more: Collection[str] = self._settings.audit_regions
        try:
            more = more or await self._ec2.regions()
        except ProviderError as error:
            text = f"regions that the settings do not name: {error}"
            listings.append(BilledListing(AWS, BilledKind.MACHINE, error=text))
        regions = sorted(of_settings.union(more))
        for first in range(0, len(regions), REGIONS_AT_ONCE):
            some = regions[first : first + REGIONS_AT_ONCE]
            listings += await all_of(read for region in some for read in self._billed_in(region))
            for region in some:
                if region not in of_settings:
                    self._ec2.forget(region)
        return listings

    def _billed_in(self, region: str) -> Sequence[Coroutine[Any, Any, BilledListing]]:
        ec2, usd = self._ec2, self._settings.image_usd_per_gib_month
        machine = partial(billed_machine, region=region, price=self._price)
        found = {
            BilledKind.MACHINE: each(ec2.instances(region, [], dict, "billed"), machine),
            BilledKind.VOLUME: each(ec2.volumes(region), partial(billed_volume, region=region)),
            BilledKind.ADDRESS: each(ec2.addresses(region), partial(billed_address, region=region)),
            BilledKind.IMAGE: each(ec2.own_images(region, [], "billed"), partial(billed_image, region=region)),
            BilledKind.SNAPSHOT: each(
                ec2.own_snapshots(region, [], "billed"), partial(billed_snapshot, region=region, usd_per_gib_month=usd)
            ),
        }
        return [listing(AWS, kind, there, region) for kind, there in found.items()]

    def _price(self, region: str, kind: str) -> float | None:
        price = self._catalogue.price(region, kind)
        return price.usd_per_hour if price else None

    async def fetch_prices(self) -> PriceList:
        """On-demand prices of Linux machines, from the Price List Query API.

        Raises:
            AuthFailed: the credentials lack pricing:GetProducts.
        """
        wanted = self._settings.instance_types
        at = self._now()
        parts = await all_of(
            self._ec2.prices(region, partial(rates, wanted=wanted)) for region in self._settings.regions
        )
        return collected((rate for part in parts for rate in part), at, NOTE)

    async def check(self) -> str:
        """The account and identity of the credentials, and whether permissions are missing."""
        return await self._check()

    async def aclose(self) -> None:
        """Close connections and threads."""
        await self._ec2.aclose()

    def _instance(self, region: str, raw: Row) -> Instance:
        spot = raw.get("InstanceLifecycle") == "spot"
        price = None if spot else self._catalogue.price(region, str(raw.get("InstanceType", "")))
        return to_instance(raw, region, price.usd_per_hour if price else None)

    def _region_of(self, instance: Instance, operation: str) -> str:
        if not instance.region:
            raise InvalidRequest(f"{instance.id} has no region", provider=AWS, operation=operation)
        return instance.region


def _in_order(
    request: GangRequest, found: Sequence[Instance], error: ProviderError | None = None
) -> Sequence[Instance]:
    """The instances in the order of the request's names.

    Raises:
        Uncertain: some are missing, or EC2 shows one name or one instance twice.
    """
    by_token = {instance.token: instance for instance in found}
    ids = {instance.id for instance in found}
    if len(found) == len(ids) == len(request.tokens) and all(token in by_token for token in request.tokens):
        return [by_token[token] for token in request.tokens]
    text = f"the gang's machines cannot be told apart: {len(by_token)} of {len(request.tokens)} names are known"
    words = error.vendor_text if error is not None else text
    raise Uncertain(text, provider=AWS, operation="launch", vendor_text=words) from error


def create(context: ProviderContext) -> AwsProvider:
    """Entry point of `meshd.providers`.

    Raises:
        ConfigError: the table is invalid; one line per problem.
    """
    settings = parse(AwsSettings, context.settings, "[providers.aws]")
    return AwsProvider(context, settings, Ec2(settings))
