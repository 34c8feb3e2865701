"""A check of the credentials' permissions, by reads and dry runs that make nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from meshd.errors import AuthFailed, InvalidRequest, NoCapacity, NotFound, QuotaExceeded
from meshd.provider_api import CLUSTER_TAG, LaunchRequest, Offer
from providers._permissions import Probe, missing_permissions, require_none_missing
from providers._reads import all_of
from providers.aws.catalogue import Catalogue
from providers.aws.client import Ec2, Row
from providers.aws.errors import AWS, is_denial, missing_in
from providers.aws.mapping import cluster_filter, run_parameters
from providers.aws.settings import AwsSettings

NOBODY = "i-00000000000000000"
"""An id that no instance has. A policy with conditions on tags denies it too, so a denial proves nothing."""
CONSOLE = "ec2:GetConsoleOutput"
REGIONS = "ec2:DescribeRegions"
"""Without these two permissions everything else works."""
_ANY_TYPE = "t3.micro"


class PermissionCheck:
    """Checks the permissions in all regions of the settings."""

    def __init__(
        self, cluster: str, settings: AwsSettings, ec2: Ec2, catalogue: Catalogue, now: Callable[[], datetime]
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._ec2 = ec2
        self._catalogue = catalogue
        self._now = now

    async def __call__(self) -> str:
        """Whose the credentials are, and what could not be checked.

        Raises:
            AuthFailed: they are invalid, or permissions are missing; the text has the actions' names.
            InvalidRequest: EC2 would refuse every machine because of the settings.
        """
        who = await self._ec2.identity(self._settings.regions[0])
        found = await all_of(self._region(region) for region in self._settings.regions)
        notes = sorted({note for _, notes in found for note in notes})
        enabled = Probe(REGIONS, lambda: self._ec2.regions("check"))
        if not self._settings.audit_regions and await missing_permissions([enabled], _named):
            notes.append(f"{REGIONS} is missing: `meshctl audit` lists only the regions of the settings")
        require_none_missing(AWS, (name for missing, _ in found for name in missing), who, notes)
        return "; ".join([who, *(notes or ["no permission is missing"])])

    async def _region(self, region: str) -> tuple[list[str], list[str]]:
        """The permissions that are missing in a region, and notes on what could not be checked."""
        machines: list[Row] = []

        async def instances() -> None:
            machines.extend(await self._ec2.instances(region, cluster_filter(self._cluster), dict, "check"))

        missing = await missing_permissions([Probe("ec2:DescribeInstances", instances), *self._reads(region)], _named)
        ours = next((str(row["InstanceId"]) for row in machines), "")
        refused = await missing_permissions(
            [Probe("ec2:TerminateInstances", lambda: self._end(region, ours or NOBODY))], _named
        )
        notes = await self._images(region)
        for name, read in (("ec2:DescribeVolumes", self._ec2.volumes), ("ec2:DescribeAddresses", self._ec2.addresses)):
            if await missing_permissions([Probe(name, partial(read, region, "check"))], _named):
                notes.append(f"{name} is missing: `meshctl audit` does not list them")
        if ours:
            missing += refused
            bake = Probe("ec2:CreateImage", lambda: self._ec2.dry_create_image(region, ours))
            if lacking := await missing_permissions([bake], _named):
                notes.append(f"{', '.join(lacking)} is missing: no image can be baked")
            if await missing_permissions([Probe(CONSOLE, lambda: self._ec2.dry_console(region, ours))], _named):
                notes.append(f"{CONSOLE} is missing: `meshctl logs NODE` shows no console")
        elif refused:
            notes.append("ec2:TerminateInstances can be checked only while there is a machine")
        if any(name.startswith("ec2:DescribeI") for name in missing):
            notes.append("ec2:RunInstances can be checked only when these are there")
        else:
            offer = await self._offer(region)
            if offer is None:
                notes.append(f"nothing is offered in {region}, so ec2:RunInstances was not checked there")
            else:
                missing += await missing_permissions([Probe("ec2:RunInstances", lambda: self._run(offer))], _named)
        return missing, notes

    async def _images(self, region: str) -> list[str]:
        """Notes on what is missing for images. What deletes them can be checked only on images of this cluster."""
        ec2, filters, snapshots = self._ec2, cluster_filter(self._cluster), list[Row]()

        async def list_snapshots() -> None:
            snapshots.extend(await ec2.own_snapshots(region, filters, "check"))

        if lacking := await missing_permissions([Probe("ec2:DescribeSnapshots", list_snapshots)], _named):
            return [f"{', '.join(lacking)} is missing: meshd lists and makes no images"]
        try:
            images = await ec2.own_images(region, filters, "check") if snapshots else []
            deletions = [
                *(
                    Probe("ec2:DeregisterImage", partial(ec2.dry_deregister_image, region, str(one["ImageId"])))
                    for one in images[:1]
                ),
                *(
                    Probe("ec2:DeleteSnapshot", partial(ec2.dry_delete_snapshot, region, str(one["SnapshotId"])))
                    for one in snapshots[:1]
                ),
            ]
            lacking = await missing_permissions(deletions, _named)
        except (AuthFailed, InvalidRequest):
            return []  # images cannot be listed, which is said elsewhere; or somebody has just deleted this one
        return [f"{', '.join(lacking)} is missing: no image can be deleted"] if lacking else []

    def _reads(self, region: str) -> list[Probe]:
        ec2, settings = self._ec2, self._settings
        images: dict[str, Any] = {"owner": settings.image_owner, "name": settings.image_names.get("x86_64", "*")}
        reads = [
            Probe("ec2:DescribeInstanceTypes", lambda: ec2.instance_types(region, [_ANY_TYPE], "check")),
            Probe("ec2:DescribeInstanceTypeOfferings", lambda: ec2.zones(region, [_ANY_TYPE], "check")),
            Probe("ec2:DescribeImages", lambda: ec2.images(region, **images, operation="check")),
        ]
        if settings.spot:
            spot = Probe(
                "ec2:DescribeSpotPriceHistory", lambda: ec2.spot_prices(region, [_ANY_TYPE], self._now(), "check")
            )
            reads.append(spot)
        return reads

    async def _offer(self, region: str) -> Offer | None:
        offers = await self._catalogue.offers(spot=False)
        return min((o for o in offers if o.region == region), key=lambda o: o.usd_per_hour, default=None)

    async def _run(self, offer: Offer) -> None:
        image = await self._catalogue.image(offer.region, offer.arch)
        request = LaunchRequest(f"{self._cluster}-doctor", self._cluster, offer, "", {CLUSTER_TAG: self._cluster})
        try:
            await self._ec2.dry_run(offer.region, run_parameters(request, self._settings, image))
        except (NoCapacity, QuotaExceeded):
            return  # the permission is there

    async def _end(self, region: str, instance_id: str) -> None:
        try:
            await self._ec2.dry_terminate(region, instance_id)
        except NotFound:
            return


def _named(error: AuthFailed, asked: str) -> str:
    return missing_in(error.text, asked) if is_denial(error.text) else ""
