"""Settings of adapters: validation with one line per problem, and secrets from files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretBytes, SecretStr, ValidationError, model_validator

from meshd.codes import FaultCode
from meshd.errors import ConfigError, Fault
from meshd.redaction import register_secret
from meshd.runtime.secretfile import read_secret, source_of
from meshd.settings_words import dotted, fault_of, misplaced_truth, show

_NO_WILDCARDS = "write each whole name; only types may have wildcards"


Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class AdapterSettings(BaseModel):
    """Base class of all adapters' settings. Refuses unknown keys; values cannot change."""

    FORMER: ClassVar[Mapping[str, str]] = {}
    """Keys that earlier versions had, each with what to do about it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ApiKeySettings(AdapterSettings):
    """Base class of the settings of a cloud with an API key."""

    api_key: SecretStr | None = None
    api_key_file: Path | None = Field(
        None, description="file with the API key; otherwise the credential `NAME_api_key`, e.g. `lambda_api_key`"
    )

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.api_key is not None and self.api_key_file is not None:
            raise ValueError("give api_key or api_key_file, not both")
        return self


S = TypeVar("S", bound=AdapterSettings)


def parse(model: type[S], table: Mapping[str, Any], source: str) -> S:
    """Validate a provider's table.

    Args:
        model: the adapter's settings.
        table: plain values from the settings file.
        source: the table's name, e.g. "[providers.aws]", for errors.

    Raises:
        ConfigError: one fault per problem, each with its value, unless that is a secret.
    """
    name = tuple(source.strip("[]").split("."))
    problems = list(misplaced_truth(table, model, name)) + list(_wildcards(table, name))
    try:
        settings = model.model_validate(dict(table))
    except ValidationError as error:
        problems += [fault_of(one, model, name) for one in error.errors(include_url=False)]
    else:
        _register(settings)
        if not problems:
            return settings
    raise ConfigError(source, problems)


def _register(settings: BaseModel) -> None:
    """Register the secrets in the settings for redaction."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, SecretStr | SecretBytes):
            register_secret(value.get_secret_value())
        elif isinstance(value, BaseModel):
            _register(value)


def _wildcards(table: Mapping[str, Any], name: tuple[str, ...]) -> Iterator[Fault]:
    """Faults for regions and zones with wildcards: adapters use such names as they are, so `us-*` would be sent."""
    for setting in ("regions", "zones", "data_centers"):
        places = table.get(setting)
        for index, place in enumerate(places if isinstance(places, list | tuple) else ()):
            if isinstance(place, str) and (not place.strip() or set(place) & set("*?[] ")):
                key = (*name, setting, str(index))
                yield Fault(
                    f"{dotted(key)} = {show(place)}: it is not the name of a place",
                    _NO_WILDCARDS,
                    key,
                    code=FaultCode.BAD_VALUE,
                )


COMPASS = "(north|south|east|west|central|northeast|northwest|southeast|southwest)"
"""The part of a region's name that EC2 and Compute Engine have in common."""


def check_places(places: tuple[str, ...], form: str, like: str) -> tuple[str, ...]:
    """Check names of regions.

    Args:
        places: the names.
        form: a pattern that all names of the cloud's regions match.
        like: examples, for the message.

    Raises:
        ValueError: a name does not match.
    """
    for place in places:
        if not re.fullmatch(form, place) and not set(place) & set("*?[] "):  # `_wildcards` reports those
            raise ValueError(f"{place} is not a region: names are like {like}")
    return places


def secret_of(
    value: SecretStr | None, path: Path | None, credential: str, *, one_line: bool = True
) -> SecretStr | None:
    """The secret: `value` if given, otherwise what `read_secret` finds.

    Raises:
        ConfigError: the file is named but missing, unreadable or empty.
    """
    if value is not None:
        register_secret(value.get_secret_value())
        return value
    return read_secret(path, credential, one_line=one_line)


def place_of(value: SecretStr | None, path: Path | None, credential: str, table: str) -> str:
    """Where `secret_of` found the secret, for messages: the file, or the table of the settings."""
    return table if value is not None else str(path or source_of(credential))
