"""The cluster's munge key: made, read, checked, kept while it rotates, never shown.

The key in force comes from `$CREDENTIALS_DIRECTORY`, which is a copy from the time when the service was started. After
a rotation the new key's file stands in for it until the next start. Keys are named by their fingerprints.
"""

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
DIRECTORY = "munge-keys"


def make_key(random_bytes: Callable[[int], bytes] = os.urandom) -> SecretBytes:
    """A new key of 1024 random bytes."""
    key = random_bytes(KEY_BYTES)
    register_secret(key)
    return SecretBytes(key)


def fingerprint(key: SecretBytes) -> str:
    """The name of a key, which may be shown: the first 16 hex digits of its sha256. Node agents use the same."""
    return hashlib.sha256(key.get_secret_value()).hexdigest()[:16]


def write_key(path: Path, key: SecretBytes) -> None:
    """Put the key in place, with mode 0400, whole or not at all. The caller owns it: give it to munge afterwards.

    Raises:
        OSError: it failed, and the old key is still there.
    """
    write_atomic(path, key.get_secret_value(), mode=0o400)


def check_permissions(path: Path) -> None:
    """Refuse a key that group or others can read or write, as munged does.

    Raises:
        MungeError: the file is missing, not regular, or too open; the text says what to do.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise MungeError(f"the munge key {path} cannot be found: {error.strerror} (make one with mungekey)") from error
    if not stat.S_ISREG(mode):
        raise MungeError(f"the munge key {path} is not a regular file")
    if mode & 0o077:
        raise MungeError(
            f"the munge key {path} is insecure: mode {stat.S_IMODE(mode):04o} is too open (chmod 0400 {path})"
        )


def read_key(path: Path | None = None, credential: str = "munge_key") -> SecretBytes:
    """The key from a file, or from `$CREDENTIALS_DIRECTORY/credential` when no path is given.

    Raises:
        MungeError: the key is missing, unreadable, too open, or of a length that munged does not take.
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
    """The key from systemd's credential, or without one from the head's own file.

    Raises:
        MungeError: as `read_key`.
    """
    return read_key() if os.environ.get("CREDENTIALS_DIRECTORY") else read_key(KEY_PATH)


class MungeKeyStore:
    """Munge keys that meshd keeps while they rotate: files of mode 0600 in its state directory.

    Every method raises MungeError when the files cannot be read or written.

    Args:
        state_dir: exists and is writable.
    """

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir / DIRECTORY

    def keep(self, key: SecretBytes) -> str:
        """Write a key, unless it is there already; returns its fingerprint."""
        name = fingerprint(key)
        if name in self.fingerprints():
            return name
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            write_atomic(self._path(name), key.get_secret_value(), mode=0o600)
        except OSError as error:
            raise MungeError(f"the munge key cannot be kept in {self._directory}: {error.strerror}") from error
        return name

    def read(self, name: str) -> SecretBytes:
        """The key with this fingerprint."""
        key = read_key(self._path(name))
        if fingerprint(key) != name:
            raise MungeError(f"the munge key {self._path(name)} is damaged: abort the rotation and begin another")
        return key

    def fingerprints(self) -> frozenset[str]:
        """The fingerprints of the keys that are there and undamaged."""
        try:
            found = [path.name.removesuffix(".key") for path in self._directory.glob("*.key")]
        except OSError as error:
            raise MungeError(f"{self._directory} cannot be read: {error.strerror}") from error
        return frozenset(name for name in found if self._whole(name))

    def erase_but(self, *names: str) -> None:
        """Remove all keys but these. It does not matter whether these are there."""
        try:
            for path in self._directory.glob("*.key"):
                if path.name.removesuffix(".key") not in names:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise MungeError(f"{self._directory} cannot be cleared: {error.strerror}") from error

    def _whole(self, name: str) -> bool:
        try:
            return fingerprint(read_key(self._path(name))) == name
        except MungeError:
            return False

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.key"
