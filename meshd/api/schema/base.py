"""What all documents share: the version, the handling of unknown fields, and types that several use."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from meshd import gpus

SCHEMA_VERSION = 1

Name = Annotated[str, Field(min_length=1, max_length=63)]
"""Of a machine, a slot or a pool."""

Words = Annotated[tuple[Annotated[str, Field(max_length=40)], ...], Field(max_length=32)]
"""Names of providers, regions or zones."""

GpuModel = Annotated[str, Field(max_length=40), AfterValidator(gpus.asked)]
"""Accepts any spelling; meshd keeps its own."""

GpusPerNode = Annotated[int, Field(ge=0, le=16)]

Usd = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A limit in USD; 0 is none."""


class Part(BaseModel):
    """A piece of an answer."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class Document(Part):
    """A whole answer: what `meshctl -o json` prints."""

    schema_version: int = SCHEMA_VERSION


class Request(BaseModel):
    """What a client asks for."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    schema_version: Literal[1] = Field(1, description="of the documents of this API")

    def only_looks(self) -> bool:
        """Whether it changes nothing, so that everybody may make it."""
        return False

    def waits_s(self) -> float:
        """How long it may wait for something to happen, in seconds."""
        return 0.0


class DryRunRequest(Request):
    """A request that can be a dry run: with `dry_run` the answer says what would be done, and nothing changes."""

    dry_run: bool = Field(False, description="answer what would be done, and change nothing")

    def only_looks(self) -> bool:
        """A dry run only looks."""
        return self.dry_run
