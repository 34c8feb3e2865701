"""The control server's admin API, version 2, as Tailscale serves it and headscale from 0.30 on: keys and devices.

Facts: https://tailscale.com/api and tailscale's own Go client (v2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from urllib.parse import quote

from pydantic import SecretStr

from meshd.errors import TailnetError
from meshd.tailnet.adminhttp import AdminHttp
from meshd.tailnet.fields import KEY_DESCRIPTION_MAX, Json, first_ipv4, flag, items, moment, table, text, texts


@dataclass(frozen=True, slots=True)
class AuthKey:
    """An auth key's record.

    Attributes:
        secret: the key itself: only the answer to `mint_key` has it.
        valid: not expired, not revoked.
    """

    id: str
    description: str
    created: datetime | None
    expires: datetime | None
    valid: bool
    reusable: bool
    ephemeral: bool
    preauthorized: bool
    tags: tuple[str, ...]
    secret: SecretStr | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """A device of the tailnet as the control server keeps it.

    Attributes:
        id: the stable id, the same as TailnetPeer.id.
        last_seen: None while it holds its connection to the control server, which is what peers see as online.
    """

    id: str
    hostname: str
    tailnet_ip: str
    tags: tuple[str, ...]
    created: datetime | None
    last_seen: datetime | None
    expires: datetime | None
    ephemeral: bool
    node_key: str


class KeyApi(Protocol):
    """The part of a control server's API that the rotation of auth keys needs. Every method raises TailnetError."""

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
        """Make an auth key, with its secret. Not idempotent."""
        ...

    async def get_key(self, key_id: str) -> AuthKey | None:
        """A key's record without its secret; None when the server does not know it, or no longer does."""
        ...

    async def keys_with(self, description: str) -> tuple[AuthKey, ...]:
        """The living keys that were minted with this description."""
        ...

    async def living_keys(self) -> tuple[AuthKey, ...]:
        """The living keys that the credential may see."""
        ...

    async def revoke_key(self, key_id: str) -> None:
        """End a key. Idempotent."""
        ...

    async def list_devices(self) -> tuple[Device, ...]:
        """All devices."""
        ...

    async def delete_device(self, device_id: str) -> None:
        """Remove a device. Idempotent."""
        ...

    async def disable_key_expiry(self, device_id: str) -> None:
        """Have a device's node key never expire. Idempotent."""
        ...

    async def set_address(self, device_id: str, tailnet_ip: str) -> None:
        """Give a device this tailnet address, which no other device may have. Idempotent."""
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


class TailscaleAdmin:
    """Keys and devices of one tailnet. Every method raises TailnetError, with what to do, and nothing else.

    Reads are tried again on 429 and 5xx. Writes are not: after a time-out of one, list before doing it again.

    Args:
        http: speaks to the server.
        tailnet: its name, or "-" for the credential's own.
    """

    def __init__(self, http: AdminHttp, *, tailnet: str = "-") -> None:
        self._http = http
        self._tailnet = f"/api/v2/tailnet/{quote(tailnet, safe='-')}"

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
        """Make an auth key. Not idempotent.

        Args:
            tags: every device that joins with it gets exactly these; an OAuth client must own them.
            lifetime_s: 1 to 90 days.
            description: for the admin console; cut to 50 characters of letters, digits, spaces and dashes.
            reusable: it joins many devices.
            ephemeral: its devices are deleted soon after they go offline.
            preauthorized: its devices skip device approval.
        """
        create = {"reusable": reusable, "ephemeral": ephemeral, "preauthorized": preauthorized, "tags": list(tags)}
        answer = await self._http.write(
            "POST",
            f"{self._tailnet}/keys",
            {
                "capabilities": {"devices": {"create": create}},
                "expirySeconds": lifetime_s,
                "description": _description(description),
            },
            scope="auth_keys",
        )
        key = _key(answer)
        if key.secret is None or not key.id:
            raise TailnetError("the tailnet's API made an auth key but did not show it: revoke it in the admin console")
        return key

    async def get_key(self, key_id: str) -> AuthKey | None:
        """A key's record without its secret; None when the server has forgotten it (some days after its end)."""
        answer = await self._http.read(f"{self._tailnet}/keys/{quote(key_id, safe='')}", scope="auth_keys")
        return _key(answer) if answer is not None else None

    async def list_keys(self) -> tuple[AuthKey, ...]:
        """All keys that the credential may see. Some servers give ids alone here: ask `get_key` for the rest."""
        answer = await self._http.read(f"{self._tailnet}/keys?all=true", scope="auth_keys")
        return tuple(_key(table(entry)) for entry in items(_found(answer, "keys").get("keys")))

    async def keys_with(self, description: str) -> tuple[AuthKey, ...]:
        """The living keys that were minted with this description: also one whose answer was lost."""
        return tuple(key for key in await self.living_keys() if key.description == _description(description))

    async def living_keys(self) -> tuple[AuthKey, ...]:
        """The living keys that the credential may see, each with its description."""
        found = []
        for listed in await self.list_keys():
            key = listed if listed.description else await self.get_key(listed.id)
            if key is not None and key.valid:
                found.append(key)
        return tuple(found)

    async def revoke_key(self, key_id: str) -> None:
        """End a key. Devices that joined with it stay. Idempotent: one that is gone already is fine."""
        path = f"{self._tailnet}/keys/{quote(key_id, safe='')}"
        await self._http.write("DELETE", path, scope="auth_keys", gone_ok=True)

    async def list_devices(self) -> tuple[Device, ...]:
        """All devices of the tailnet."""
        answer = await self._http.read(f"{self._tailnet}/devices", scope="devices:core")
        return tuple(_device(table(entry)) for entry in items(_found(answer, "devices").get("devices")))

    async def delete_device(self, device_id: str) -> None:
        """Remove a device. If it still runs it stays unaware and needs a new login. Idempotent."""
        await self._http.write("DELETE", _path(device_id), scope="devices:core", gone_ok=True)

    async def disable_key_expiry(self, device_id: str) -> None:
        """Have a device's node key never expire. Idempotent."""
        await self._http.write("POST", f"{_path(device_id)}/key", {"keyExpiryDisabled": True}, scope="devices:core")

    async def set_address(self, device_id: str, tailnet_ip: str) -> None:
        """Give a device this tailnet address in place of its own. Refused while another device has it. Idempotent."""
        await self._http.write("POST", f"{_path(device_id)}/ip", {"ipv4": tailnet_ip}, scope="devices:core")


def _path(device_id: str) -> str:
    return f"/api/v2/device/{quote(device_id, safe='')}"


def _found(answer: Json | None, key: str) -> Json:
    """An answer that must have a list: a 404 or a changed shape is unknown, not an empty tailnet."""
    if answer is None or not (isinstance(answer.get(key), list) or (key in answer and answer[key] is None)):
        raise TailnetError(f"the tailnet's API gave no list of {key}: is [tailnet] tailnet right?")
    return answer


def _description(wanted: str) -> str:
    return "".join(c if c.isalnum() or c in " -" else "-" for c in wanted)[:KEY_DESCRIPTION_MAX].strip()


def _key(answer: Json) -> AuthKey:
    create = table(table(table(answer.get("capabilities")).get("devices")).get("create"))
    secret = text(answer, "key")
    return AuthKey(
        id=text(answer, "id"),
        description=text(answer, "description"),
        created=moment(answer, "created"),
        expires=moment(answer, "expires"),
        valid=not flag(answer, "invalid") and moment(answer, "revoked") is None,
        reusable=flag(create, "reusable"),
        ephemeral=flag(create, "ephemeral"),
        preauthorized=flag(create, "preauthorized"),
        tags=texts(create, "tags") or texts(answer, "tags"),
        secret=SecretStr(secret) if secret else None,
    )


def _device(entry: Json) -> Device:
    return Device(
        id=text(entry, "nodeId") or text(entry, "id"),
        hostname=text(entry, "hostname"),
        tailnet_ip=first_ipv4(texts(entry, "addresses")),
        tags=texts(entry, "tags"),
        created=moment(entry, "created"),
        last_seen=None if flag(entry, "connectedToControl") else moment(entry, "lastSeen"),
        expires=None if flag(entry, "keyExpiryDisabled") else moment(entry, "expires"),
        ephemeral=flag(entry, "isEphemeral"),
        node_key=text(entry, "nodeKey"),
    )
