"""The munge key in force, and the keys of a rotation."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import SecretBytes

from meshd.daemon.munge_key.head import HeadSide
from meshd.errors import MungeError
from meshd.munge.key import MungeKeyStore, fingerprint, make_key
from meshd.munge.rotation import key_in_force
from meshd.runtime.clock import Clock
from meshd.store.munge_rotations import MungeRotations


class MungeKeys:
    """Reads, makes and erases them. Every method raises MungeError when a key cannot be read or written.

    Args:
        rotations: the journal's records.
        store: keeps the key files of a rotation.
        credential: reads the key that the service was started with.
        head: tells which key the head has.
        clock: time.
    """

    def __init__(
        self,
        rotations: MungeRotations,
        store: MungeKeyStore,
        credential: Callable[[], SecretBytes],
        head: HeadSide,
        clock: Clock,
    ) -> None:
        self._rotations = rotations
        self._store = store
        self._credential = credential
        self._head = head
        self._clock = clock
        self._loaded: dict[str, SecretBytes] = {}
        self._by_rotation = True
        """The newest rotation says which key is in force. If it ended before this start, it says so only when the
        credential, which is the head's present key, is the same."""
        last = rotations.last()
        if last is not None and last.ended:
            self._by_rotation = self._is_credential(last.target)
            store.erase_but()

    def for_joining(self) -> SecretBytes:
        """The key for a machine that joins now."""
        last = self._rotations.last()
        if last is None or not self._by_rotation:
            return self._credential()
        return self.read(key_in_force(last, self._head.view.key, self._clock.now()))

    def name(self) -> str:
        """The fingerprint of `for_joining`; "" when that cannot be read."""
        try:
            return fingerprint(self.for_joining())
        except MungeError:
            return ""

    def replaced(self, name: str) -> bool:
        """Whether a node with this key missed the last rotation. "" is a key that is not known."""
        last = self._rotations.last()
        return self._by_rotation and last is not None and name not in {"", last.target}

    def kept(self) -> frozenset[str]:
        """The fingerprints of the key files."""
        return self._store.fingerprints()

    def begin(self) -> str:
        """Follow the rotation that begins now. Returns the fingerprint of the present key."""
        old = fingerprint(self.for_joining())
        self._by_rotation = True
        return old

    def make(self, old: str) -> str:
        """Make the new key of a rotation, and keep it and the old one as files. Returns its fingerprint."""
        key = self.for_joining()
        if fingerprint(key) != old:
            raise MungeError("the munge key has changed since the rotation began: abort it")
        self._store.erase_but(old)
        self._store.keep(key)
        return self._store.keep(make_key())

    def read(self, name: str) -> SecretBytes:
        """The key with this fingerprint."""
        if name in self._loaded:
            return self._loaded[name]
        if name in self._store.fingerprints():
            return self._store.read(name)
        key = self._credential()
        if fingerprint(key) != name:
            raise MungeError(
                f"the munge key {name} is no more: `systemctl restart meshd`, then `meshctl rotate-key --munge`"
            )
        return key

    def keep_only(self, name: str) -> None:
        """The rotation has ended with this key: keep it, and erase the other files."""
        self._loaded = {name: self.read(name)}
        self._store.erase_but(name)

    def _is_credential(self, name: str) -> bool:
        try:
            return fingerprint(self._credential()) == name
        except MungeError:
            return False
