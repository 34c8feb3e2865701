"""The settings in the table `[providers.aws]`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator, model_validator

from providers._settings import COMPASS, AdapterSettings, NotNegative, Positive, check_places

DLAMI = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) *"
DLAMI_ARM = "Deep Learning ARM64 Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) *"
GPU_TYPES = ("p4d.*", "p4de.*", "p5.*", "p5e.*", "p5en.*", "p6-b200.*", "g4dn.*", "g5.*", "g5g.*", "g6.*", "g6e.*")


class AwsSettings(AdapterSettings):
    """Where and how to rent machines from EC2.

    Without a key here, the SDK finds credentials itself: environment, shared files, instance profile.
    """

    regions: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        ("us-east-1",),
        description="regions to rent in; machines are listed only there, so never remove one that has machines",
    )
    audit_regions: tuple[str, ...] = Field(
        (), description="regions that `meshctl audit` lists besides; empty: all that the account has enabled"
    )
    zones: tuple[str, ...] = Field((), description="availability zones to rent in; empty: every zone of the regions")
    instance_types: Annotated[tuple[str, ...], Field(min_length=1, max_length=100)] = Field(
        GPU_TYPES, description="types to rent, with * as wildcard"
    )
    prices: dict[str, Positive] = Field({}, description="USD per hour by type, before any table")
    spot: bool = Field(False, description="offer spot machines as well")
    spot_max_usd_per_hour: Positive | None = Field(None, description="maximum price; empty: the on-demand price")

    access_key_id: str = ""
    secret_access_key: SecretStr | None = None
    secret_access_key_file: Path | None = Field(
        None, description="file with the secret key; otherwise the credential `aws_secret_access_key`"
    )
    session_token: SecretStr | None = None
    profile: str = Field("", description="profile of the SDK's shared files")
    endpoint_url: str = Field("", description="another EC2, STS and pricing endpoint; empty: AWS")

    images: dict[str, str] = Field(
        {}, description="AMI by `region/arch`, e.g. us-east-1/x86_64; otherwise by owner and name"
    )
    image_owner: str = Field("amazon", description="owner of the AMIs that are looked up by name")
    image_names: dict[str, str] = Field(
        {"x86_64": DLAMI, "arm64": DLAMI_ARM}, description="name pattern by architecture; the newest AMI is taken"
    )
    image_usd_per_gib_month: NotNegative = Field(
        0.05, description="what EC2 takes for the snapshots of baked images; of us-east-1"
    )
    subnets: dict[str, str] = Field({}, description="subnet by zone; otherwise the zone's default subnet")
    security_groups: dict[str, tuple[str, ...]] = Field({}, description="security group ids by region")
    key_name: str = Field("", description="EC2 key pair, the same in all regions; empty: none")
    iam_instance_profile: str = Field("", description="name of the machines' instance profile; empty: none")
    root_volume_gib: Annotated[int, Field(ge=8, le=16384)] = 100
    root_volume_type: str = "gp3"
    tags: dict[str, str] = Field({}, description="tags put on every machine and volume besides meshd's own")

    threads: Annotated[int, Field(gt=0, le=64)] = 64
    call_timeout_s: Positive = 30.0
    launch_timeout_s: Positive = 60.0
    read_attempts: Annotated[int, Field(gt=0, le=10)] = Field(3, description="tries of a read")
    fresh_s: NotNegative = Field(120.0, description="how long EC2 may not find a new machine")
    catalogue_ttl_s: NotNegative = Field(3600.0, description="how long to cache types, zones and images")

    @field_validator("regions", "audit_regions")
    @classmethod
    def _region_names(cls, regions: tuple[str, ...]) -> tuple[str, ...]:
        return check_places(regions, rf"[a-z]{{2}}(-gov|-iso[a-z]?)?-{COMPASS}-\d", "us-east-1 and eu-central-1")

    @field_validator("images")
    @classmethod
    def _image_ids(cls, images: dict[str, str]) -> dict[str, str]:
        for place, image in images.items():
            if not re.fullmatch(r"ami-[0-9a-f]+", image):
                raise ValueError(f"{place} = {image} is not an AMI: an id looks like ami-0123456789abcdef0")
        return images

    @model_validator(mode="after")
    def _keys_fit(self) -> AwsSettings:
        if self.secret_access_key is not None and self.secret_access_key_file is not None:
            raise ValueError("give secret_access_key or secret_access_key_file, not both")
        has_secret = self.secret_access_key is not None or self.secret_access_key_file is not None
        if has_secret and not self.access_key_id:
            raise ValueError("access_key_id is missing")
        if self.access_key_id and self.profile:
            raise ValueError("give access_key_id or profile, not both")
        stray = [zone for zone in self.zones if not zone.startswith(self.regions)]
        if stray:
            raise ValueError(f"zones: {', '.join(stray)} is in none of the regions")
        odd = [place for place in self.images if place.count("/") != 1]
        if odd:
            raise ValueError(f"images: {', '.join(odd)} is not region/arch")
        return self
