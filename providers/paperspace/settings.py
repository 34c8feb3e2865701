"""The settings in the table `[providers.paperspace]`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from providers._settings import ApiKeySettings, NotNegative, Positive

GPU_TYPES = ("H100*", "A100*", "A6000*", "A5000*", "A4000*", "V100*", "RTX*", "P*")
GPU_TEMPLATES = ("*ML*in*a*box*", "*MLiaB*", "*Ubuntu 24.04*", "*Ubuntu 22.04*")
CPU_TEMPLATES = ("Ubuntu 24.04*", "Ubuntu 22.04*")


class PaperspaceSettings(ApiKeySettings):
    """Where and how to rent machines from Paperspace."""

    base_url: str = Field("https://api.paperspace.com", pattern=r"^https?://[^/]+/?$")
    regions: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        ("ny2", "ca1", "ams1"), description="regions to rent in, by code"
    )
    machine_types: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        GPU_TYPES, description="types to rent, with * as wildcard; C* are those without GPUs"
    )
    prices: dict[str, Positive] = Field({}, description="USD per hour by type, before the shipped table")

    templates: tuple[str, ...] = Field(
        GPU_TEMPLATES, description="names of OS templates for types with GPUs, in order of preference"
    )
    cpu_templates: tuple[str, ...] = Field(CPU_TEMPLATES, description="the same for types without GPUs")
    template_ids: dict[str, str] = Field({}, description="one fixed template by type, instead of a name")
    disk_gb: Annotated[int, Field(ge=50, le=8000)] = Field(
        100, description="disk size; Paperspace sells 50, 100, 250, 500, 1000, 2000"
    )
    network_ids: dict[str, str] = Field({}, description="private network by region; otherwise the region's default")

    script_ready_s: NotNegative = Field(
        300.0, description="how long a machine must be ready before its startup script is deleted"
    )
    script_grace_s: NotNegative = Field(600.0, description="age at which a startup script without a machine is deleted")
    script_max_age_s: Positive = Field(3600.0, description="age at which any startup script is deleted")
    script_sweep_s: NotNegative = Field(60.0, description="how often to look through the startup scripts")

    call_spacing_s: NotNegative = Field(0.2, description="Paperspace does not document its limits")
    max_wait_s: NotNegative = Field(
        30.0, description="a call that would wait longer for its turn fails and is repeated later"
    )
    fresh_s: NotNegative = Field(120.0, description="how long Paperspace may not find a new machine")
    start_s: NotNegative = Field(300.0, description="how long a new machine may be off before it counts as stopped")
    events_after_s: NotNegative = Field(
        60.0, description="after this time, read the events of a machine that does not run"
    )
    templates_ttl_s: NotNegative = Field(3600.0, description="how long to cache OS templates")
    call_timeout_s: Positive = 30.0
    launch_timeout_s: Positive = 60.0

    @field_validator("regions")
    @classmethod
    def _codes(cls, regions: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(region.strip().lower() for region in regions))

    @field_validator("prices", "template_ids", "network_ids")
    @classmethod
    def _lower_keys(cls, table: dict[str, object]) -> dict[str, object]:
        return {key.lower(): value for key, value in table.items()}
