"""A service account's key, as Google's console gives it: JSON."""

from __future__ import annotations

import json
from typing import Any

from pydantic import SecretStr

from meshd.errors import ConfigError

_FIELDS = ("client_email", "private_key", "token_uri")


def key_info(key: SecretStr) -> dict[str, Any]:
    """The key's fields.

    Raises:
        ConfigError: it is no service account's key. Nothing of it is in the text.
    """
    try:
        info = json.loads(key.get_secret_value())
    except ValueError:
        info = None
    if not isinstance(info, dict) or info.get("type") != "service_account":
        raise ConfigError("[providers.gce]", ["service_account: is not the JSON key of a service account"])
    missing = [name for name in _FIELDS if not info.get(name)]
    if missing:
        raise ConfigError("[providers.gce]", [f"service_account: {', '.join(missing)} is missing in the key"])
    return info
