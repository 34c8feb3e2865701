"""Reads secrets from files, or from systemd's credentials directory."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import SecretStr

from meshd.codes import FaultCode
from meshd.errors import ConfigError, Fault
from meshd.redaction import register_secret

VARIABLE = "CREDENTIALS_DIRECTORY"
HOME = Path("/etc/meshd/credentials")
"""meshd.service loads credentials from here: `NAME/KEY` becomes the credential `NAME_KEY`."""

SECRET_MAX_B = 1024 * 1024
"""systemd's limit for all credentials of a service together."""


def source_of(credential: str) -> Path:
    """The file that the administrator wrote, for messages: systemd's copy has another path."""
    directory = os.environ.get(VARIABLE)
    copy = Path(directory) / credential if directory else None
    if copy is not None and copy.is_symlink():  # lent by `meshctl config check`
        return copy.readlink()
    name, _, key = credential.partition("_")
    return HOME / name / key


def read_secret(path: Path | None, credential: str, *, one_line: bool = True) -> SecretStr | None:
    """The secret in `path`; without a path, in `$CREDENTIALS_DIRECTORY/credential`; None when there is neither.

    Registers the secret, so that no log line shows it: see `meshd.redaction`.

    Args:
        path: the file that the settings name.
        credential: systemd's name of the credential.
        one_line: whether it must be one word: a key or token for a header.

    Raises:
        ConfigError: the named file is missing, unreadable or empty, or holds no such secret. The error names the file
            that the administrator can correct, and shows nothing of its content.
    """
    shown = path
    if path is None:
        directory = os.environ.get(VARIABLE)
        if not directory or not os.path.lexists(Path(directory) / credential):
            return None
        path, shown = Path(directory) / credential, source_of(credential)
    source = str(shown)
    try:
        with path.open("rb") as file:
            raw = file.read(SECRET_MAX_B + 1)
    except OSError as error:
        cure = _cure(error, source, credential=shown != path)
        raise ConfigError(
            source, [Fault(f"cannot be read: {error.strerror}", cure, code=FaultCode.SECRET_UNREADABLE)]
        ) from error
    try:
        text = raw.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise ConfigError(
            source, [Fault("is not UTF-8 text", "put the key itself into it, as text", code=FaultCode.SECRET_UNUSABLE)]
        ) from None
    if len(raw) > SECRET_MAX_B:
        raise ConfigError(
            source, [Fault("is too long to be a key", "put the key itself into it", code=FaultCode.SECRET_UNUSABLE)]
        )
    if not text:
        raise ConfigError(source, [Fault("is empty", "put the key into it", code=FaultCode.SECRET_UNUSABLE)])
    register_secret(text)
    if one_line and (not text.isascii() or not text.isprintable() or " " in text):
        raise ConfigError(
            source,
            [Fault("is not one line with a key", "put only the key into it", code=FaultCode.SECRET_UNUSABLE)],
        )
    return SecretStr(text)


def _cure(error: OSError, source: str, *, credential: bool) -> str:
    """How to make the file readable for the daemon."""
    if isinstance(error, FileNotFoundError):
        return "put the key into it, or remove its name from the settings"
    if isinstance(error, IsADirectoryError):
        return "name the file with the key, not a directory"
    if isinstance(error, PermissionError) and not credential:
        return f"let only SlurmUser read it: `chown slurm {source}` and `chmod 0400 {source}`"
    return f"look at it with `ls -l {source}`"
