"""Secrets from files, or from the directory where systemd puts them."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import SecretStr

from meshd.errors import ConfigError
from meshd.redaction import register_secret


def read_secret(path: Path | None, credential: str) -> SecretStr | None:
    """The secret in `path`, or else the one in `$CREDENTIALS_DIRECTORY/credential`; None when there is neither.

    From then on it is in no log line: see `meshd.redaction`.

    Raises:
        ConfigError: the file is named but missing, unreadable or empty.
    """
    if path is None:
        directory = os.environ.get("CREDENTIALS_DIRECTORY")
        if not directory or not (Path(directory) / credential).exists():
            return None
        path = Path(directory) / credential
    try:
        text = path.read_text("utf-8").strip()
    except OSError as error:
        raise ConfigError(str(path), [f"cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError:
        raise ConfigError(str(path), ["is not UTF-8 text"]) from None
    if not text:
        raise ConfigError(str(path), ["is empty"])
    register_secret(text)
    return SecretStr(text)
