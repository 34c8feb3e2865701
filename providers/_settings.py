"""What the adapters' settings share: validation with one clear line per problem, and secrets from files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, SecretBytes, SecretStr, ValidationError

from meshd.errors import ConfigError
from meshd.redaction import register_secret
from meshd.runtime.secretfile import read_secret


class AdapterSettings(BaseModel):
    """Base of every adapter's table: unknown keys are refused, values are fixed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


S = TypeVar("S", bound=AdapterSettings)


def parse(model: type[S], table: Mapping[str, Any], source: str) -> S:
    """Validate a provider's table.

    Args:
        model: the adapter's settings.
        table: plain values as they come from the settings file.
        source: where the table is, e.g. "[providers.aws]"; it begins every line of the error.

    Raises:
        ConfigError: one line per problem. Values are in none of them.
    """
    try:
        settings = model.model_validate(dict(table))
        _register(settings)
        return settings
    except ValidationError as error:
        problems = [_line(e) for e in error.errors(include_input=False, include_url=False, include_context=False)]
    raise ConfigError(source, problems)


def _register(settings: BaseModel) -> None:
    """Secrets that are in the settings themselves never show."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, SecretStr | SecretBytes):
            register_secret(value.get_secret_value())
        elif isinstance(value, BaseModel):
            _register(value)


def _line(error: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"])
    text = "unknown key" if error["type"] == "extra_forbidden" else error["msg"].removeprefix("Value error, ")
    return f"{where}: {text}" if where else text


def secret_of(value: SecretStr | None, path: Path | None, credential: str) -> SecretStr | None:
    """The secret given by value, or else as `read_secret` finds it.

    Raises:
        ConfigError: the file is named but missing, unreadable or empty.
    """
    if value is not None:
        register_secret(value.get_secret_value())
        return value
    return read_secret(path, credential)
