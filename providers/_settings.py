"""What the adapters' settings share: validation with one clear line per problem, and secrets from files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, SecretBytes, SecretStr, ValidationError

from meshd.errors import ConfigError, Fault
from meshd.redaction import register_secret
from meshd.runtime.secretfile import read_secret, source_of
from meshd.settings_words import dotted, fault_of, misplaced_truth, show

_NO_WILDCARDS = "write each whole name; only types may have wildcards"


class AdapterSettings(BaseModel):
    """Base of every adapter's table: unknown keys are refused, values are fixed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


S = TypeVar("S", bound=AdapterSettings)


def parse(model: type[S], table: Mapping[str, Any], source: str) -> S:
    """Validate a provider's table.

    Args:
        model: the adapter's settings.
        table: plain values as they come from the settings file.
        source: where the table is, e.g. "[providers.aws]"; it begins every line of the error.

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
    """Secrets that are in the settings themselves never show."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, SecretStr | SecretBytes):
            register_secret(value.get_secret_value())
        elif isinstance(value, BaseModel):
            _register(value)


def _wildcards(table: Mapping[str, Any], name: tuple[str, ...]) -> Iterator[Fault]:
    """Regions and zones are asked for one by one: the cloud would be asked for one that is called `us-*`."""
    for setting in ("regions", "zones", "data_centers"):
        places = table.get(setting)
        for index, place in enumerate(places if isinstance(places, list | tuple) else ()):
            if isinstance(place, str) and (not place.strip() or set(place) & set("*?[] ")):
                key = (*name, setting, str(index))
                yield Fault(f"{dotted(key)} = {show(place)}: it is no name of a place", _NO_WILDCARDS, key)


COMPASS = "(north|south|east|west|central|northeast|northwest|southeast|southwest)"
"""The words that EC2's and Compute Engine's regions are named with."""


def check_places(places: tuple[str, ...], form: str, like: str) -> tuple[str, ...]:
    """Names of regions as they are.

    Args:
        places: as written.
        form: a pattern that the names of the cloud's regions match.
        like: examples for the message.

    Raises:
        ValueError: one cannot be a name; says how the names look.
    """
    for place in places:
        if not re.fullmatch(form, place) and not set(place) & set("*?[] "):  # those are told with their place
            raise ValueError(f"{place} cannot be a region: they are named like {like}")
    return places


def secret_of(
    value: SecretStr | None, path: Path | None, credential: str, *, one_line: bool = True
) -> SecretStr | None:
    """The secret given by value, or else as `read_secret` finds it.

    Raises:
        ConfigError: the file is named but missing, unreadable or empty.
    """
    if value is not None:
        register_secret(value.get_secret_value())
        return value
    return read_secret(path, credential, one_line=one_line)


def place_of(value: SecretStr | None, path: Path | None, credential: str, table: str) -> str:
    """Where `secret_of` found a secret, for messages: the file that a person can mend, or the table with the value."""
    return table if value is not None else str(path or source_of(credential))
