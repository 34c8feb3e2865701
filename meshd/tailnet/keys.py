"""Where auth keys come from: a file that the user fills, or the control server's API that mints them."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol

import structlog
from pydantic import SecretStr

from meshd.errors import ConfigError, TailnetError
from meshd.obs.log import register_secret
from meshd.runtime.clock import Clock
from meshd.runtime.secretfile import read_secret
from meshd.tailnet.admin import AuthKey, KeyApi
from meshd.tailnet.keystore import KeptKey, KeyStore, key_id_of

CREDENTIAL: Final = "tailscale_auth_key"
LIFETIME_S: Final = 90 * 86400
"""Of a reusable key: the most that Tailscale's API allows."""

log = structlog.get_logger(__name__)


class AuthKeySource(Protocol):
    """Gives the key for new machines."""

    async def current(self) -> SecretStr:
        """The key to join with now. Never logged, never on an argv.

        Raises:
            TailnetError: there is none, with what to do about it.
        """
        ...


class KeyFile:
    """A reusable key in a file or credential. It is read each time.

    A systemd credential is a copy made when the service starts: after changing its source, restart meshd.

    Args:
        path: `[tailnet] auth_key_file`; None: the credential `tailscale_auth_key`.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.problem = ""
        """Why `find` found no key in the file; "" after a good reading."""
        self._warned: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """Its name in messages."""
        return str(self._path) if self._path else f"the credential {CREDENTIAL}"

    @property
    def watched(self) -> bool:
        """Meshd notices a change of it. Of a credential it does not."""
        return self._path is not None

    def read(self) -> KeptKey | None:
        """The key in it; None when no file is named and there is no credential.

        Raises:
            TailnetError: the file is missing, unreadable or empty.
        """
        try:
            secret = read_secret(self._path, CREDENTIAL)
        except ConfigError as error:
            raise TailnetError(f"{error}: put a reusable, tagged auth key there") from error
        if secret is None:
            return None
        if self._path is not None:
            self._check_mode(self._path)
        register_secret(secret.get_secret_value())
        return KeptKey(secret, key_id_of(secret))

    def find(self) -> KeptKey | None:
        """The key in it; None when there is none, or when it cannot be read: then `problem` says why."""
        try:
            found = self.read()
        except TailnetError as error:
            if self.problem != str(error):
                log.warning("auth_key_file_not_read", reason=str(error))
            self.problem = str(error)
            return None
        self.problem = ""
        return found

    def _check_mode(self, path: Path) -> None:
        found = path.stat()
        seen = (found.st_ino, found.st_mode)
        if stat.S_IMODE(found.st_mode) & 0o077 and seen != self._warned:
            log.warning("auth_key_file_readable_by_others", path=str(path), mode=oct(stat.S_IMODE(found.st_mode)))
            self._warned = seen


class Minter:
    """Mints tagged keys through a control server's API.

    Args:
        api: the API.
        tags: of a key that follows none.
        cluster: for the description of reusable keys.
        clock: for the end of a key when the API does not say it.
    """

    def __init__(self, api: KeyApi, *, tags: Sequence[str], cluster: str, clock: Clock) -> None:
        self._api = api
        self.tags = tuple(tags)
        self._cluster = cluster
        self._clock = clock

    async def first(self) -> KeptKey:
        """A key that follows none."""
        return await self._mint(f"meshd {self._cluster}", self.tags)

    async def next(self, rotation_id: str, old: AuthKey | None, tags: Sequence[str]) -> KeptKey:
        """A key for a rotation. One that was minted for it before, and whose secret was lost, is revoked first.

        Args:
            rotation_id: in the key's description, by which a lost one is found.
            old: the key that it follows: device approval and ephemerality are kept; None when that is not known.
            tags: exactly these.

        Raises:
            TailnetRefused: the credential may not do this.
            TailnetError: anything else.
        """
        description = f"meshd {self._cluster} {rotation_id}"
        await self.revoke_lost(rotation_id)
        return await self._mint(
            description,
            tags,
            ephemeral=old.ephemeral if old else False,
            preauthorized=old.preauthorized if old else True,
        )

    async def single(self, description: str, tags: Sequence[str], lifetime_s: int) -> KeptKey:
        """A key for one use, and for a short time.

        Args:
            description: by which one whose answer was lost is found.
            tags: exactly these.
            lifetime_s: of the key.

        Raises:
            TailnetRefused: the credential may not do this.
            TailnetError: anything else; it may have been made.
        """
        return await self._mint(description, tags, reusable=False, lifetime_s=lifetime_s)

    async def several(self, description: str, tags: Sequence[str], lifetime_s: int) -> KeptKey:
        """A key for the machines of a gang: for several uses, since no API counts them, and for a short time.

        Args and errors as `single`.
        """
        return await self._mint(description, tags, reusable=True, lifetime_s=lifetime_s)

    async def revoke_lost(self, rotation_id: str) -> None:
        """Revoke every key that was minted for a rotation."""
        await self.revoke_described(f"meshd {self._cluster} {rotation_id}")

    async def revoke_described(self, description: str, *, but: Collection[str] = (), single: bool = False) -> None:
        """Revoke the living keys with a description.

        Args:
            description: with which they were minted.
            but: ids of keys that are surely others: headscale keeps no more than a mark of a description.
            single: only those for one use.

        Raises:
            TailnetError: the API cannot be asked, or refuses.
        """
        for lost in await self._api.keys_with(description):
            if lost.id not in but and not (single and lost.reusable):
                log.warning("minted_key_revoked", key_id=lost.id, description=description)
                await self._api.revoke_key(lost.id)

    async def _mint(
        self,
        description: str,
        tags: Sequence[str],
        *,
        ephemeral: bool = False,
        preauthorized: bool = True,
        reusable: bool = True,
        lifetime_s: int = LIFETIME_S,
    ) -> KeptKey:
        made = await self._api.mint_key(
            tags=tags, lifetime_s=lifetime_s, description=description, reusable=reusable, ephemeral=ephemeral,
            preauthorized=preauthorized,
        )  # fmt: skip
        if made.secret is None:
            raise TailnetError("the minted key has no secret")
        register_secret(made.secret.get_secret_value(), passing=True)
        expires = made.expires or self._clock.now() + timedelta(seconds=lifetime_s)
        log.info("auth_key_minted", key_id=made.id, expires=expires.isoformat(), tags=tuple(tags))
        return KeptKey(made.secret, made.id, expires, tuple(tags), minted=True)


class AuthKeys:
    """The key that is in use. The first one comes from the file, or is minted; later ones come by rotations alone.

    Args:
        store: keeps it.
        file: the user's.
        minter: mints the first one; None: the file has it.
        clock: time.
    """

    def __init__(self, store: KeyStore, file: KeyFile, minter: Minter | None, clock: Clock) -> None:
        self._store = store
        self._file = file
        self._minter = minter
        self._clock = clock
        self._lock = asyncio.Lock()

    async def current(self) -> SecretStr:
        """The key in use. See AuthKeySource. When there is one, this does not yield to other tasks.

        So a rotation sees every launch that has taken the key, because the launch is written before anything else runs.
        """
        kept = self._store.in_use() or await self._first()
        if kept.expires is not None and kept.expires <= self._clock.now():
            raise TailnetError(
                f"the auth key {kept.id or 'in use'} ended on {kept.expires:%Y-%m-%d}: `meshctl rotate-key`, or put a "
                f"new one into {self._file.name}"
            )
        return kept.secret

    async def _first(self) -> KeptKey:
        async with self._lock:
            kept = self._store.in_use()
            if kept is None:
                kept = await self._minter.first() if self._minter else self._from_file()
                try:
                    self._store.use(kept)
                except TailnetError as error:
                    if kept.minted:
                        raise TailnetError(f"{error}; key {kept.id} was made and is lost: revoke it") from error
                    raise
            return kept

    def _from_file(self) -> KeptKey:
        found = self._file.read()
        if found is None:
            raise TailnetError(
                f"no auth key: set [tailnet] auth_key_file, provide the credential {CREDENTIAL}, "
                "or set mint_auth_key = true with an API credential"
            )
        return KeptKey(found.secret, found.id, file_sha256=found.sha256)
