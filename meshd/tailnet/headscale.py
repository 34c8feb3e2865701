"""headscale's API, version 1, as a control server's API: pre-auth keys and nodes.

From 0.30 on headscale also serves Tailscale's own API: then `meshd.tailnet.admin` speaks with it. Facts: headscale's
proto/headscale/v1. Keys have had two forms: up to 0.27 a key is listed whole and is expired by its owner and itself;
from 0.28 on it reads hskey-auth-PREFIX-SECRET, is shown once, and is expired by its id.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import quote

from pydantic import SecretStr

from meshd.errors import TailnetError, TailnetRefused
from meshd.obs.log import register_secret
from meshd.runtime.clock import Clock
from meshd.tailnet.admin import AuthKey, Device
from meshd.tailnet.adminhttp import AdminHttp
from meshd.tailnet.fields import Json, first_ipv4, flag, items, moment, table, text, texts

KEYS: Final = "/api/v1/preauthkey"
NODES: Final = "/api/v1/node"
USERS: Final = "/api/v1/user"
SCOPE: Final = "an API key of headscale"

_FRACTION: Final = re.compile(r"\.(\d{1,9})")


class HeadscaleAdmin:
    """Pre-auth keys and nodes of one headscale: a KeyApi. Every method raises TailnetError and nothing else.

    headscale keeps no description with a key. So that a key whose answer was lost can be found, the description is
    kept in the microseconds of the key's end, which are ours to choose.

    Args:
        http: speaks to the server, with an API key as its token.
        clock: for the end of new keys, and whether one has ended.
        user: name or number of the user that owns new keys; "" for keys of tags alone, which 0.28 and newer make.
    """

    def __init__(self, http: AdminHttp, clock: Clock, *, user: str = "") -> None:
        self._http = http
        self._clock = clock
        self._user = user

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def mint_key(
        self,
        *,
        tags: Sequence[str],
        lifetime_s: int,
        description: str,
        reusable: bool = True,
        ephemeral: bool = False,
        preauthorized: bool = True,
    ) -> AuthKey:
        """Make a pre-auth key. Not idempotent. headscale approves every device that has one."""
        end = (self._clock.now() + timedelta(seconds=lifetime_s)).replace(microsecond=_mark(description))
        body = {
            "reusable": reusable,
            "ephemeral": ephemeral,
            "expiration": end.isoformat().replace("+00:00", "Z"),
            "aclTags": list(tags),
        }
        if self._user:
            body["user"] = await self._user_id()
        answer = table((await self._http.write("POST", KEYS, body, scope=SCOPE)).get("preAuthKey"))
        key = self._key(answer)
        if key.secret is None or not key.id:
            raise TailnetError("headscale made a pre-auth key but did not show it: `headscale preauthkeys expire`")
        return key

    async def get_key(self, key_id: str) -> AuthKey | None:
        """A key's record without its secret; None when the server does not know it."""
        return next((self._bare(entry) for entry in await self._entries() if text(entry, "id") == key_id), None)

    async def keys_with(self, description: str) -> tuple[AuthKey, ...]:
        """The living keys that were minted with this description."""
        found = (entry for entry in await self._entries() if _microseconds(entry) == _mark(description))
        return tuple(key for key in map(self._bare, found) if key.valid)

    async def living_keys(self) -> tuple[AuthKey, ...]:
        """The living keys; headscale keeps no description with them."""
        return tuple(key for key in map(self._bare, await self._entries()) if key.valid)

    async def revoke_key(self, key_id: str) -> None:
        """Expire a key: nodes that joined with it stay. Idempotent. It is not deleted, for nodes still refer to it."""
        entry = next((entry for entry in await self._entries() if text(entry, "id") == key_id), None)
        if entry is None or not self._bare(entry).valid:
            return
        body: dict[str, str] = {"id": key_id}
        secret = text(entry, "key")
        if not secret.startswith("hskey-"):
            body = {"user": _owner(entry), "key": secret}
        await self._http.write("POST", f"{KEYS}/expire", body, scope=SCOPE)

    async def list_devices(self) -> tuple[Device, ...]:
        """All nodes."""
        answer = await self._http.read(NODES, scope=SCOPE)
        return tuple(_device(table(entry)) for entry in _list(answer, "nodes"))

    async def delete_device(self, device_id: str) -> None:
        """Remove a node. Idempotent."""
        await self._http.write("DELETE", f"{NODES}/{quote(device_id, safe='')}", scope=SCOPE, gone_ok=True)

    async def disable_key_expiry(self, device_id: str) -> None:
        """Refuse: an older headscale does not know the parameter, and would let the key expire at once.

        Raises:
            TailnetRefused: always.
        """
        raise TailnetRefused(
            f"meshd does not change the expiry of headscale's node {device_id}: set `node.expiry: 0` in headscale's "
            "settings, and use keys with tags"
        )

    async def set_address(self, device_id: str, tailnet_ip: str) -> None:
        """Not possible there.

        Raises:
            TailnetRefused: always.
        """
        raise TailnetRefused(f"headscale has no call that gives node {device_id} the address {tailnet_ip}")

    async def _user_id(self) -> str:
        """The user's number; its name when the server lists no such user, as before 0.26."""
        if self._user.isdigit():
            return self._user
        answer = await self._http.read(f"{USERS}?name={quote(self._user, safe='')}", scope=SCOPE)
        users = [table(user) for user in _list(answer, "users")]
        found = next((user for user in users if text(user, "name") == self._user), None)
        if found is None:
            raise TailnetRefused(f"headscale has no user {self._user}: check [tailnet] headscale_user")
        return text(found, "id") or self._user

    async def _entries(self) -> list[Json]:
        owner = f"?user={quote(await self._user_id(), safe='')}" if self._user else ""
        answer = await self._http.read(f"{KEYS}{owner}", scope=SCOPE)
        return [table(entry) for entry in _list(answer, "preAuthKeys")]

    def _bare(self, entry: Json) -> AuthKey:
        return self._key({**entry, "key": ""})

    def _key(self, entry: Json) -> AuthKey:
        end, secret = moment(entry, "expiration"), text(entry, "key")
        if secret:
            register_secret(secret)
        spent = flag(entry, "used") and not flag(entry, "reusable")
        return AuthKey(
            id=text(entry, "id"), description="", created=moment(entry, "createdAt"), expires=end,
            valid=_lives(end, self._clock.now()) and not spent, reusable=flag(entry, "reusable"),
            ephemeral=flag(entry, "ephemeral"), preauthorized=True, tags=texts(entry, "aclTags"),
            secret=SecretStr(secret) if secret else None,
        )  # fmt: skip


def _lives(end: datetime | None, now: datetime) -> bool:
    return end is None or end > now


def _mark(description: str) -> int:
    """A description as a number of microseconds; never 0, which an end that others chose mostly has."""
    return 1 + int(hashlib.sha256(description.encode()).hexdigest(), 16) % 999_999


def _microseconds(entry: Json) -> int:
    found = _FRACTION.search(text(entry, "expiration"))
    return int(found[1].ljust(6, "0")[:6]) if found else 0


def _owner(entry: Json) -> str:
    owner = entry.get("user")
    return text(table(owner), "id") or text(table(owner), "name") if isinstance(owner, dict) else text(entry, "user")


def _list(answer: Json | None, name: str) -> tuple[object, ...]:
    """An answer's list. An empty one may be left out; no answer at all is unknown, not empty."""
    if answer is None or (answer and name not in answer):
        raise TailnetError(f"headscale's API gave no list of {name}: is [tailnet] api_base_url right?")
    return items(answer.get(name))


def _device(entry: Json) -> Device:
    return Device(
        id=text(entry, "id"), hostname=text(entry, "name"),
        tailnet_ip=first_ipv4(texts(entry, "ipAddresses")),
        tags=texts(entry, "tags") or (*texts(entry, "forcedTags"), *texts(entry, "validTags")),
        created=moment(entry, "createdAt"), last_seen=None if flag(entry, "online") else moment(entry, "lastSeen"),
        expires=moment(entry, "expiry"), ephemeral=flag(table(entry.get("preAuthKey")), "ephemeral"),
        node_key=text(entry, "nodeKey"),
    )  # fmt: skip
