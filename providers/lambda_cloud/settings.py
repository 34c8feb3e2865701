"""The settings in the table `[providers.lambda]`."""

from __future__ import annotations

from pydantic import Field, model_validator

from providers._settings import ApiKeySettings, NotNegative, Positive


class LambdaSettings(ApiKeySettings):
    """Where and how to rent machines from Lambda."""

    base_url: str = Field("https://cloud.lambda.ai", pattern=r"^https?://[^/]+/?$")
    regions: tuple[str, ...] = Field((), description="regions to rent in; empty: all")
    instance_types: tuple[str, ...] = Field(("gpu_*",), description="types to rent, with * as wildcard")
    ssh_key_name: str = Field("", max_length=64, description="empty: the account's only key")
    image_family: str = Field("", description="image family, e.g. lambda-stack-24-04; empty: the newest Lambda Stack")
    image_id: str = Field("", description="one fixed image, instead of a family")
    tags: dict[str, str] = Field({}, description="tags put on every machine besides meshd's own")

    call_spacing_s: NotNegative = Field(1.1, description="Lambda accepts one call per second and account")
    launch_spacing_s: NotNegative = Field(12.5, description="Lambda accepts one launch per 12 s and account")
    max_wait_s: NotNegative = Field(
        30.0, description="a call that would wait longer for its turn fails and is repeated later"
    )
    fresh_s: NotNegative = Field(120.0, description="how long Lambda may not find a new machine")
    call_timeout_s: Positive = 30.0
    launch_timeout_s: Positive = 60.0

    @model_validator(mode="after")
    def _one_of_each(self) -> LambdaSettings:
        if self.image_family and self.image_id:
            raise ValueError("give image_family or image_id, not both")
        return self
