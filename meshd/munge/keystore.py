"""Munge keys that meshd keeps while they rotate: files of mode 0600 in its state directory, named by fingerprint.

The key in force comes from `$CREDENTIALS_DIRECTORY`, which is a copy of the time when the service was started; after a
rotation the new key's file stands in for it until the next start.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretBytes

from meshd.errors import MungeError
from meshd.munge.key import fingerprint, read_key
from meshd.runtime.atomicfile import write_atomic

DIRECTORY = "munge-keys"


class MungeKeyStore:
    """The files. Every method raises MungeError when they cannot be read or written.

    Args:
        state_dir: exists and is writable.
    """

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir / DIRECTORY

    def keep(self, key: SecretBytes) -> str:
        """Write a key down; returns its fingerprint. One that is there already is left as it is."""
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
        """Of the keys that are here and whole."""
        try:
            found = [path.name.removesuffix(".key") for path in self._directory.glob("*.key")]
        except OSError as error:
            raise MungeError(f"{self._directory} cannot be read: {error.strerror}") from error
        return frozenset(name for name in found if self._whole(name))

    def erase_but(self, *names: str) -> None:
        """Remove all others. A name that is not here is no error."""
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
