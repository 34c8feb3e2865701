"""Join and node tokens, derived from one secret: a lost journal does not lock out the machines that are alive.

A token is HMAC-SHA256 of its use and the machine's name. What was used by whom is in the journal.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from pathlib import Path

from pydantic import SecretStr

from meshd.bootstrap.tokens import hash_token
from meshd.errors import StoreError
from meshd.redaction import register_secret
from meshd.runtime.atomicfile import write_atomic

SECRET_BYTES = 32


class MachineTokens:
    """Makes tokens and finds out whose a token is."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._names: set[str] = set()
        self._by_hash: dict[tuple[str, str], str] = {}

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
            raise StoreError(f"{path} is cut short: remove it, a new one is made; machines that joined must join anew")
        register_secret(secret)
        return cls(secret)

    def join_token(self, machine: str) -> SecretStr:
        """What the machine joins with."""
        return _shown_never(self._derive("join", machine))

    def node_token(self, machine: str) -> SecretStr:
        """What its node agent speaks with afterwards."""
        return _shown_never(self._derive("node", machine))

    def whose(self, use: str, token_hash: str, machines: Iterable[str]) -> str | None:
        """The machine whose `use` token has this hash, of these machines; None when it is none's."""
        alive = set(machines)
        if alive != self._names:
            kept = {key: name for key, name in self._by_hash.items() if name in alive}
            for name in alive - self._names:
                for one in ("join", "node"):
                    kept[one, hash_token(self._derive(one, name))] = name
            self._names, self._by_hash = alive, kept
        return self._by_hash.get((use, token_hash))

    def _derive(self, use: str, machine: str) -> SecretStr:
        return SecretStr(hmac.new(self._secret, f"{use}:{machine}".encode(), hashlib.sha256).hexdigest())


def _shown_never(token: SecretStr) -> SecretStr:
    register_secret(token.get_secret_value(), passing=True)
    return token
