"""A service account's key, as Google's console gives it: JSON."""

from __future__ import annotations

import json
from typing import Any

from pydantic import SecretStr

from meshd.errors import ConfigError, Fault

_CURE = "put the JSON file into it that Google's console gives for a service account"
_FIELDS = ("client_email", "private_key", "token_uri")


def key_info(key: SecretStr, source: str = "[providers.gce]") -> dict[str, Any]:
    """The key's fields.

    Args:
        key: the text.
        source: the file that it is from.

    Raises:
        ConfigError: it is no service account's key. Nothing of it is in the text.
    """
    try:
        info = json.loads(key.get_secret_value())
    except ValueError:
        info = None
    if not isinstance(info, dict) or info.get("type") != "service_account":
        raise ConfigError(source, [Fault("is not the JSON key of a service account", _CURE)])
    missing = [name for name in _FIELDS if not info.get(name)]
    if missing:
        raise ConfigError(source, [Fault(f"{', '.join(missing)} is missing in the key", _CURE)])
    return info
