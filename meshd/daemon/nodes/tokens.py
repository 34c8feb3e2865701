"""Join and node tokens, derived from one secret: a lost journal does not lock out the machines that are alive.

A token is HMAC-SHA256 of its use, the machine's name and, of a node token that was renewed, its generation. Which
generation a machine has is in the journal, and beside the secret as well: when the journal is lost, an old token must
not open anything again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path

from pydantic import SecretStr

from meshd.bootstrap.tokens import hash_token
from meshd.errors import StoreError
from meshd.redaction import register_secret
from meshd.runtime.atomicfile import write_atomic

SECRET_BYTES = 32
GENERATIONS = ".generations"
"""Suffix of the file beside the secret."""


class MachineTokens:
    """Makes tokens and finds out whose a token is.

    Args:
        secret: what they are derived from.
        floors: the file of the generations; None: they are kept in memory only.
    """

    def __init__(self, secret: bytes, floors: Path | None = None) -> None:
        self._secret = secret
        self._path = floors
        self._floors = _read_floors(floors) if floors else {}
        self._given: Mapping[str, int] = {}
        self._known: dict[str, int] = {}
        self._hashes: dict[str, tuple[str, ...]] = {}
        self._join_hashes: dict[str, str] = {}
        self._node_hashes: dict[str, tuple[str, int]] = {}
        self._given_gangs: Collection[str] = ()
        self._gang_hashes: dict[str, str] = {}

    @classmethod
    def at(cls, path: Path) -> MachineTokens:
        """With the secret in `path`, made when it is missing (0600).

        Raises:
            StoreError: it cannot be read or written.
        """
        try:
            if not path.exists():
                write_atomic(path, secrets.token_bytes(SECRET_BYTES), mode=0o600)
            secret = path.read_bytes()
        except OSError as error:
            raise StoreError(f"{path} cannot be used: {error.strerror}") from error
        if len(secret) < SECRET_BYTES:
            raise StoreError(
                f"{path} is too short: remove it, and meshd makes another one; machines that joined must join again"
            )
        register_secret(secret)
        return cls(secret, path.with_name(path.name + GENERATIONS))

    def join_token(self, machine: str) -> SecretStr:
        """What the machine joins with. For the id of a gang: what each of its machines joins with."""
        return _shown_never(self._join(machine))

    def node_token(self, machine: str, generation: int = 0) -> SecretStr:
        """What its node agent speaks with afterwards."""
        return _shown_never(self._node(machine, generation))

    def invitation_token(self, host: str, number: int) -> SecretStr:
        """What redeems an invitation of a host; `number` counts the invitations with its name."""
        return _shown_never(self._derive(f"invitation:{host}:{number}"))

    def host_token(self, host: str, number: int) -> SecretStr:
        """What a host speaks with that redeemed that invitation."""
        return _shown_never(self._derive(f"host:{host}:{number}"))

    def keep_out_of_texts(self, machine: str, generations: Collection[int]) -> None:
        """Have the machine's join token, and its node tokens of these generations, blanked in every text."""
        _shown_never(self._join(machine))
        for generation in generations:
            _shown_never(self._node(machine, generation))

    def whose_join(self, token_hash: str, generations: Mapping[str, int]) -> str | None:
        """The machine whose join token has this hash; None when it is none's. Arguments as `whose_node`."""
        self._learn(generations)
        return self._join_hashes.get(token_hash)

    def whose_gang(self, token_hash: str, gangs: Collection[str]) -> str:
        """The gang whose join token has this hash; "" when it is none's.

        Args:
            token_hash: of what a caller showed.
            gangs: the ids of those that have machines; the same object while nothing has changed.
        """
        if gangs is not self._given_gangs:
            self._gang_hashes = {hash_token(self._join(gang)): gang for gang in gangs}
            self._given_gangs = gangs
        return self._gang_hashes.get(token_hash, "")

    def whose_node(self, token_hash: str, generations: Mapping[str, int]) -> tuple[str, int] | None:
        """The machine whose node token has this hash, and the token's generation; None when it is none's.

        Args:
            token_hash: of what a caller showed.
            generations: of the machines that are alive; not changed afterwards. The next one of each is taken too: it
                is known to the machine alone, which was given it.
        """
        self._learn(generations)
        return self._node_hashes.get(token_hash)

    def _learn(self, generations: Mapping[str, int]) -> None:
        """Make the hashes of what is new. The same object as before is not looked through: that is each call's case."""
        if generations is self._given:
            return
        for name in self._known.keys() - generations.keys():
            self._unlearn(name)
        for name, generation in generations.items():
            if self._known.get(name) != generation:
                self._unlearn(name)
                self._learn_one(name, generation)
        self._given = generations

    def _learn_one(self, name: str, generation: int) -> None:
        join = hash_token(self._join(name))
        self._join_hashes[join] = name
        nodes = [hash_token(self._node(name, one)) for one in (generation, generation + 1)]
        self._node_hashes.update(zip(nodes, ((name, generation), (name, generation + 1)), strict=True))
        self._known[name], self._hashes[name] = generation, (join, *nodes)

    def _unlearn(self, name: str) -> None:
        for one in self._hashes.pop(name, ()):
            self._join_hashes.pop(one, None)
            self._node_hashes.pop(one, None)
        self._known.pop(name, None)

    def floor(self, machine: str) -> int:
        """The generation below which no token of the machine opens anything."""
        return self._floors.get(machine, 0)

    def raise_floor(self, machine: str, generation: int) -> None:
        """No older token of the machine opens anything from now on, whatever becomes of the journal.

        Raises:
            StoreError: it cannot be written down; nothing has changed.
        """
        if generation > self.floor(machine):
            self._write({**self._floors, machine: generation})

    def forget(self, gone: Collection[str]) -> None:
        """These machines are gone. Raises StoreError."""
        if gone & self._floors.keys():
            self._write({name: floor for name, floor in self._floors.items() if name not in gone})

    @property
    def floors(self) -> Mapping[str, int]:
        """By machine, of those whose token was renewed."""
        return self._floors

    def _write(self, floors: dict[str, int]) -> None:
        if self._path is not None:
            try:
                write_atomic(self._path, json.dumps(floors).encode(), mode=0o600)
            except OSError as error:
                raise StoreError(f"{self._path} cannot be written: {error.strerror}") from error
        self._floors = floors

    def _join(self, machine: str) -> SecretStr:
        return self._derive(f"join:{machine}")

    def _node(self, machine: str, generation: int) -> SecretStr:
        return self._derive(f"node:{machine}:{generation}" if generation else f"node:{machine}")

    def _derive(self, text: str) -> SecretStr:
        return SecretStr(hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest())


def _shown_never(token: SecretStr) -> SecretStr:
    register_secret(token.get_secret_value(), passing=True)
    return token


def _read_floors(path: Path) -> dict[str, int]:
    """Raises StoreError: without it, tokens that were renewed might open something again."""
    try:
        found = json.loads(path.read_text()) if path.exists() else {}
        return {str(name): int(generation) for name, generation in found.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be read: {error}; remove it only if no token was renewed, or the journal is whole"
        ) from error
