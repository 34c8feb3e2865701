"""The settings in the table `[providers.runpod]`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from providers._settings import ApiKeySettings, NotNegative, Positive
from providers.runpod.names import TAG_PREFIX

Count = Annotated[int, Field(ge=1, le=64)]
Port = Annotated[str, Field(pattern=r"^\d{1,5}/(tcp|http)$")]
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class RunpodSettings(ApiKeySettings):
    """Where and how to rent pods from RunPod."""

    FORMER = dict.fromkeys(
        ("pods_have_tun", "pods_have_systemd"),
        "delete the line: pods without TUN device and systemd are nodes too, and each pod reports what it has",
    )

    base_url: str = Field("https://api.runpod.io", pattern=r"^https?://[^/]+/?$")

    clouds: tuple[Literal["secure", "community"], ...] = Field(("secure",), description="tiers to rent in")
    data_centers: tuple[str, ...] = Field((), description="data centres to rent in; empty: all")
    country_codes: tuple[Annotated[str, Field(pattern=r"^[A-Z]{2}$")], ...] = Field((), description="empty: all")
    gpu_types: tuple[str, ...] = Field(("*",), description="RunPod's GPU ids, with * as wildcard; empty: none")
    gpu_counts: tuple[Count, ...] = Field((1, 2, 4, 8), description="GPUs in one pod")
    min_cuda_version: str = Field("", pattern=r"^(\d+\.\d+)?$", description="of the host's driver")
    cpu_types: tuple[str, ...] = Field((), description="CPU flavours, with * as wildcard; empty: none")
    cpu_vcpus: tuple[Count, ...] = Field((4, 8, 16), description="vCPUs of a CPU pod, powers of two")
    vcpus_per_gpu: Count = Field(2, description="assumed, because the API does not say")
    memory_gib_per_gpu: int = Field(8, ge=2, description="assumed, because the API does not say")

    spot: bool = Field(False, description="offer spot pods as well, by RunPod's SDK (meshd[runpod])")
    spot_max_usd_per_gpu_hour: Positive | None = Field(None, description="maximum bid; none: no limit")
    spot_bid_margin_percent: Annotated[float, Field(ge=0, le=100)] = Field(
        5.0, description="how much above the lowest bid to bid"
    )

    image: str = Field("runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404", min_length=1)
    cpu_image: str = Field("", description="image of CPU pods; empty: the same")
    registry_id: str = Field("", description="RunPod's id of the login for a private registry")
    disk_gib: int = Field(100, ge=1, description="of the container's own disk, lost with the pod")
    network_volumes: dict[str, str] = Field({}, description="network volume by data centre")
    network_volume_path: str = Field("/workspace", pattern=r"^/.+")
    ports: tuple[Port, ...] | None = Field(
        None, description="ports that RunPod makes public; none: no port, or 22/tcp with start_ssh"
    )
    global_networking: bool = Field(False, description="RunPod's own network between pods; GPU pods only")
    start_ssh: bool = Field(
        False, description="the account's SSH keys, and the image's own start script beside stage 1"
    )
    env: dict[str, str] = Field({}, description="environment of the pod; readable by everybody with an API key")

    max_wait_s: NotNegative = Field(
        30.0, description="a call that would wait longer for RunPod's rate limit fails and is repeated later"
    )
    fresh_s: NotNegative = Field(120.0, description="how long RunPod may not find a new pod")
    call_timeout_s: Positive = 30.0
    launch_timeout_s: Positive = 60.0

    @property
    def public_ports(self) -> tuple[str, ...]:
        """The ports to make public. meshd itself needs none."""
        if self.ports is not None:
            return self.ports
        return ("22/tcp",) if self.start_ssh else ()

    @field_validator("clouds")
    @classmethod
    def _some_cloud(cls, clouds: tuple[str, ...]) -> tuple[str, ...]:
        if not clouds:
            raise ValueError("name at least one of secure, community")
        return clouds

    @field_validator("cpu_vcpus")
    @classmethod
    def _powers_of_two(cls, counts: tuple[int, ...]) -> tuple[int, ...]:
        if any(count < 2 or count & (count - 1) for count in counts):
            raise ValueError("RunPod takes powers of two from 2 on")
        return counts

    @field_validator("env")
    @classmethod
    def _usable_env(cls, env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if not _ENV_NAME.fullmatch(name) or name.startswith(TAG_PREFIX):
                raise ValueError(f"{name} cannot be set: names are letters, digits and _, and not {TAG_PREFIX}...")
        return env

    @model_validator(mode="after")
    def _spot_can_be_had(self) -> RunpodSettings:
        if self.spot and self.global_networking:
            raise ValueError("spot: RunPod's own network is for on-demand pods: leave global_networking out")
        return self
