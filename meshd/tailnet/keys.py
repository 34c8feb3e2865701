"""Where the auth key comes from that a new machine joins with: a file that the user fills, or one that meshd mints.

Changing the key on machines that already joined (rotation) belongs beside this, not in here: a source says which key is
current and nothing about who holds an older one.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

import structlog
from pydantic import SecretStr

from meshd.config import read_secret
from meshd.errors import ConfigError, TailnetError
from meshd.obs.log import register_secret
from meshd.runtime.atomicfile import write_atomic
from meshd.runtime.clock import Clock
from meshd.tailnet.admin import TailscaleAdmin
from meshd.tailnet.fields import moment, table, text, texts

CREDENTIAL: Final = "tailscale_auth_key"
MINTED_FILE: Final = "tailscale-auth-key.json"
LIFETIME_S: Final = 90 * 86400
RENEW_BEFORE_S: Final = 14 * 86400

log = structlog.get_logger(__name__)


class AuthKeySource(Protocol):
    """Gives the key for machines that are born from now on."""

    async def current(self) -> SecretStr:
        """The key to join with now. Never logged, never on an argv.

        Raises:
            TailnetError: there is none, with what to do about it.
        """
        ...


class FileKeySource:
    """A reusable key in a file or credential. It is read anew each time, so a new file counts at once.

    A systemd credential is a copy made when the service starts: after changing its source, restart meshd.

    Args:
        path: `[tailnet] auth_key_file`; None: the credential `tailscale_auth_key`.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._warned: tuple[int, int] | None = None

    async def current(self) -> SecretStr:
        """The key in the file. See AuthKeySource."""
        try:
            key = read_secret(self._path, CREDENTIAL)
        except ConfigError as error:
            raise TailnetError(f"{error}: put a reusable, tagged auth key there") from error
        if key is None:
            raise TailnetError(
                f"no auth key: set [tailnet] auth_key_file, provide the credential {CREDENTIAL}, "
                "or set mint_auth_key = true with an API credential"
            )
        if self._path is not None:
            self._check_mode(self._path)
        register_secret(key.get_secret_value())
        return key

    def _check_mode(self, path: Path) -> None:
        found = path.stat()
        seen = (found.st_ino, found.st_mode)
        if stat.S_IMODE(found.st_mode) & 0o077 and seen != self._warned:
            log.warning("auth_key_file_readable_by_others", path=str(path), mode=oct(stat.S_IMODE(found.st_mode)))
            self._warned = seen


@dataclass(frozen=True, slots=True)
class _Minted:
    id: str
    key: SecretStr
    expires: datetime
    tags: tuple[str, ...]


class MintedKeySource:
    """A reusable, pre-authorised, tagged key minted through the admin API and kept in the state directory, mode 0600.

    A new one is minted when the tags were changed or the kept one's end is near. While that fails, the kept one serves
    to its end. The old key is not revoked: machines may still be booting with it.

    Args:
        admin: the admin API.
        state_dir: exists and is writable.
        tags: what every device that joins with it gets.
        cluster: for the key's description.
        clock: tells how near the end is.
        lifetime_s: of a new key; the API allows 90 days.
        renew_before_s: how long before its end a key is replaced; longer than any machine takes to boot.
    """

    def __init__(
        self,
        admin: TailscaleAdmin,
        state_dir: Path,
        *,
        tags: Sequence[str],
        cluster: str,
        clock: Clock,
        lifetime_s: int = LIFETIME_S,
        renew_before_s: float = RENEW_BEFORE_S,
    ) -> None:
        self._admin = admin
        self._path = state_dir / MINTED_FILE
        self._tags = tuple(tags)
        self._cluster = cluster
        self._clock = clock
        self._lifetime_s = lifetime_s
        self._renew_before = timedelta(seconds=renew_before_s)
        self._lock = asyncio.Lock()

    async def current(self) -> SecretStr:
        """The kept key, or a new one. See AuthKeySource."""
        async with self._lock:
            kept = self._read()
            now = self._clock.now()
            if kept and kept.tags == self._tags and kept.expires - self._renew_before > now:
                return kept.key
            try:
                return (await self._mint()).key
            except TailnetError as error:
                if kept is None or kept.tags != self._tags or kept.expires <= now:
                    raise
                log.warning("auth_key_not_renewed", reason=str(error), key_id=kept.id, expires=kept.expires.isoformat())
                return kept.key

    async def _mint(self) -> _Minted:
        made = await self._admin.mint_key(
            tags=self._tags, lifetime_s=self._lifetime_s, description=f"meshd {self._cluster}"
        )
        if made.secret is None:
            raise TailnetError("the minted key has no secret")
        register_secret(made.secret.get_secret_value())
        expires = made.expires or self._clock.now() + timedelta(seconds=self._lifetime_s)
        minted = _Minted(made.id, made.secret, expires, self._tags)
        record = {
            "id": minted.id,
            "key": minted.key.get_secret_value(),
            "expires": expires.isoformat(),
            "tags": list(self._tags),
        }
        try:
            write_atomic(self._path, json.dumps(record).encode(), mode=0o600)
        except OSError as error:
            raise TailnetError(
                f"{self._path} cannot be written ({error.strerror}): key {made.id} was made and is lost: revoke it"
            ) from error
        log.info("auth_key_minted", key_id=made.id, expires=expires.isoformat(), tags=self._tags)
        return minted

    def _read(self) -> _Minted | None:
        """The kept key; None when there is none or the file is no longer one of ours: a new one is minted then."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(fd, encoding="utf-8") as file:
                record = table(json.load(file))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise TailnetError(f"{self._path} cannot be read ({error.strerror})") from error
        except ValueError:
            log.warning("minted_key_file_unreadable", path=str(self._path))
            return None
        key, expires = text(record, "key"), moment(record, "expires")
        if not key or expires is None:
            return None
        register_secret(key)
        return _Minted(text(record, "id"), SecretStr(key), expires, texts(record, "tags"))
