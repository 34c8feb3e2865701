"""The settings in the table `[providers.gce]`, and the JSON key of a service account."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from meshd.codes import FaultCode
from meshd.errors import ConfigError, Fault
from providers._settings import COMPASS, AdapterSettings, NotNegative, Positive, check_places

_CURE = "use the JSON file that Google's console gives for a service account"
_FIELDS = ("client_email", "private_key", "token_uri")

GPU_TYPES = ("a2-*", "a3-*", "a4-*", "g2-*")
ATTACHED = re.compile(r"(n1-[a-z0-9-]+)\+([a-z][a-z0-9-]*)x(\d{1,2})")
"""An N1 type with attached GPUs, e.g. n1-standard-8+nvidia-tesla-t4x1: type, accelerator, count."""

_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_TYPE = re.compile(r"[a-z0-9*?-]+")
_SSH_KEY = re.compile(r"[a-z_][a-z0-9_-]*:(ssh|ecdsa|sk)-\S+ \S+.*")
IMAGE_KINDS = frozenset({"gpu/x86_64", "gpu/arm64", "cpu/x86_64", "cpu/arm64"})
OUR_METADATA = frozenset({"startup-script", "ssh-keys"})


class GceSettings(AdapterSettings):
    """Where and how to rent machines from Compute Engine.

    Without a service account here, the SDK uses Google's application default credentials.
    """

    project: str = Field(
        "", pattern=r"^([a-z][a-z0-9.:-]*[a-z0-9])?$", description="project id; empty: the credentials' own"
    )
    regions: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        ("us-central1",), description="regions to rent in; machines are listed in the whole project"
    )
    zones: tuple[str, ...] = Field((), description="zones to rent in; empty: every zone of the regions")
    instance_types: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        GPU_TYPES, description="machine types to rent, with * as wildcard"
    )
    attached_gpus: tuple[Annotated[str, Field(pattern=f"^{ATTACHED.pattern}$")], ...] = Field(
        (), description="N1 types with GPUs attached, e.g. n1-standard-8+nvidia-tesla-t4x1"
    )
    prices: dict[str, Positive] = Field({}, description="USD per hour by type, before any table")
    spot: bool = Field(False, description="offer spot machines as well")
    spot_prices: dict[str, Positive] = Field({}, description="USD per hour of spot machines by type")

    service_account: SecretStr | None = Field(None, description="a service account's key, as JSON text")
    service_account_file: Path | None = Field(
        None, description="file with the key; otherwise the credential `gce_service_account`"
    )
    api_endpoint: str = Field(
        "", pattern=r"^(https?://[^/]+/?)?$", description="another Compute endpoint; empty: Google's"
    )
    billing_endpoint: str = Field(
        "",
        pattern=r"^(https?://[^/]+/?)?$",
        description="another Cloud Billing endpoint; empty: api_endpoint, or Google's",
    )
    anonymous: bool = Field(False, description="send no credentials; only for a stand-in at `api_endpoint`")

    images: dict[str, str] = Field({}, description="source image by gpu/x86_64, gpu/arm64, cpu/x86_64 and cpu/arm64")
    image_usd_per_gib_month: NotNegative = Field(0.05, description="what Google takes for baked images")
    network: str = Field("global/networks/default", min_length=1, description="for regions without a subnetwork")
    subnetworks: dict[str, str] = Field({}, description="subnetwork by region, for networks in custom mode")
    public_ip: bool = Field(True, description="false: the network needs Cloud NAT")
    nic_type: Literal["", "GVNIC", "VIRTIO_NET"] = Field("GVNIC", description="empty: Google's choice")
    network_tags: tuple[str, ...] = Field((), description="for firewall rules; meshd needs none")
    ssh_keys: tuple[str, ...] = Field((), description="lines user:public-key; empty: the project's keys alone")
    machine_service_account: str = Field("", description="e-mail of the machines' own account; empty: none")
    disk_gib: Annotated[int, Field(ge=10, le=65536)] = 100
    disk_type: str = Field("", description="empty: pd-balanced, or hyperdisk-balanced where the type wants it")
    max_run_s: Annotated[int, Field(ge=60, le=120 * 86400)] | None = Field(
        None, description="Google deletes each machine after this time, busy or not; none: never"
    )
    metadata: dict[str, str] = Field({}, description="more metadata for every machine")
    labels: dict[str, str] = Field({}, description="labels put on every machine besides meshd's own")

    threads: Annotated[int, Field(gt=0, le=64)] = 64
    call_timeout_s: Positive = 30.0
    launch_timeout_s: Positive = Field(30.0, description="for the create call itself")
    insert_wait_s: NotNegative = Field(20.0, description="how long a launch waits for Google to confirm capacity")
    fresh_s: NotNegative = Field(120.0, description="how long Google may not find a new machine")
    catalogue_ttl_s: NotNegative = Field(3600.0, description="how long to cache types and zones")

    @field_validator("regions")
    @classmethod
    def _region_names(cls, regions: tuple[str, ...]) -> tuple[str, ...]:
        return check_places(regions, rf"[a-z]+-{COMPASS}\d{{1,2}}", "us-central1 and europe-west4")

    @model_validator(mode="after")
    def _keys_fit(self) -> GceSettings:
        given = [name for name in ("service_account", "service_account_file") if getattr(self, name) is not None]
        if len(given) == 2:
            raise ValueError("give service_account or service_account_file, not both")
        if self.anonymous and not self.api_endpoint:
            raise ValueError("anonymous needs api_endpoint")
        if self.anonymous and given:
            raise ValueError(f"give anonymous or {given[0]}, not both")
        return self

    @model_validator(mode="after")
    def _places_fit(self) -> GceSettings:
        stray = [zone for zone in self.zones if zone.rpartition("-")[0] not in self.regions]
        if stray:
            raise ValueError(f"zones: {', '.join(stray)} is in none of the regions")
        odd = sorted(set(self.images) - IMAGE_KINDS)
        if odd:
            raise ValueError(f"images: {', '.join(odd)} is none of {', '.join(sorted(IMAGE_KINDS))}")
        return self

    @model_validator(mode="after")
    def _words_fit(self) -> GceSettings:
        for key, value in self.labels.items():
            if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
                raise ValueError(f"labels: {key} breaks Google's rule: lower-case letters, digits, - and _, at most 63")
        if any(not _SSH_KEY.fullmatch(line) for line in self.ssh_keys):
            raise ValueError("ssh_keys: a line is not user:public-key")
        if any(not _TYPE.fullmatch(pattern) for pattern in self.instance_types):
            raise ValueError("instance_types: names have lower-case letters, digits and - only, and * as wildcard")
        taken = sorted(OUR_METADATA & set(self.metadata))
        if taken:
            raise ValueError(f"metadata: {', '.join(taken)} is meshd's own")
        return self


def key_info(key: SecretStr, source: str = "[providers.gce]") -> dict[str, Any]:
    """The fields of a service account's key.

    Args:
        key: the JSON text.
        source: its file, for errors.

    Raises:
        ConfigError: it is not such a key. The text contains nothing of the key.
    """
    try:
        info = json.loads(key.get_secret_value())
    except ValueError:
        info = None
    if not isinstance(info, dict) or info.get("type") != "service_account":
        raise ConfigError(
            source, [Fault("is not the JSON key of a service account", _CURE, code=FaultCode.SECRET_UNUSABLE)]
        )
    missing = [name for name in _FIELDS if not info.get(name)]
    if missing:
        raise ConfigError(
            source, [Fault(f"{', '.join(missing)} is missing from the key", _CURE, code=FaultCode.SECRET_UNUSABLE)]
        )
    return info
