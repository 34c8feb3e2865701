"""The cluster's munge key: made, read, checked, never shown."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from pydantic import SecretBytes

from meshd.errors import MungeError
from meshd.redaction import register_secret
from meshd.runtime.atomicfile import write_atomic

KEY_BYTES = 1024
KEY_MIN_B = 32
KEY_MAX_B = 1024
KEY_PATH = Path("/etc/munge/munge.key")


def make_key(random_bytes: Callable[[int], bytes] = os.urandom) -> SecretBytes:
    """A new key of 1024 random bytes."""
    key = random_bytes(KEY_BYTES)
    register_secret(key)
    return SecretBytes(key)


def fingerprint(key: SecretBytes) -> str:
    """What may be shown of a key: the first 16 hex digits of its sha256. The node agent tells the same."""
    return hashlib.sha256(key.get_secret_value()).hexdigest()[:16]


def write_key(path: Path, key: SecretBytes) -> None:
    """Put the key in place, 0400, whole or not at all. Its owner is the caller: give it to munge afterwards.

    Raises:
        OSError: the old key is still there.
    """
    write_atomic(path, key.get_secret_value(), mode=0o400)


def check_permissions(path: Path) -> None:
    """As munged does, refuse a key that group or others can reach.

    Raises:
        MungeError: missing, not a regular file, or too open: with the cure.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise MungeError(f"the munge key {path} cannot be found: {error.strerror} (make one with mungekey)") from error
    if not stat.S_ISREG(mode):
        raise MungeError(f"the munge key {path} is not a regular file")
    if mode & 0o077:
        raise MungeError(
            f"the munge key {path} is insecure: mode {stat.S_IMODE(mode):04o} lets others at it (chmod 0400 {path})"
        )


def read_key(path: Path | None = None, credential: str = "munge_key") -> SecretBytes:
    """The key from a file, or from `$CREDENTIALS_DIRECTORY/credential` when no path is given.

    Raises:
        MungeError: there is none, it cannot be read, is too open, or has a length that munged does not take.
    """
    if path is None:
        directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
        if not directory:
            raise MungeError(f"no munge key: neither a file nor the credential {credential} is given")
        path = Path(directory) / credential
        if not path.exists():
            raise MungeError(f"no munge key: the credential {credential} is missing (LoadCredential= in meshd.service)")
    else:
        check_permissions(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MungeError(f"the munge key {path} cannot be read: {error.strerror}") from error
    if not KEY_MIN_B <= len(data) <= KEY_MAX_B:
        raise MungeError(f"the munge key {path} has {len(data)} bytes; munged takes {KEY_MIN_B} to {KEY_MAX_B}")
    register_secret(data)
    return SecretBytes(data)


def head_key() -> SecretBytes:
    """The key as systemd handed it over, or where there is none of systemd, as it lies on the head.

    Raises:
        MungeError: as `read_key`.
    """
    return read_key() if os.environ.get("CREDENTIALS_DIRECTORY") else read_key(KEY_PATH)
