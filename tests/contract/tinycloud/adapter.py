"""The adapter of tinycloud."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp

from meshd.errors import (
    AuthFailed,
    ConfigError,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
    Uncertain,
)
from meshd.provider_api import (
    CLUSTER_TAG,
    MACHINE_TAG,
    Instance,
    InstanceId,
    InstanceState,
    LaunchRequest,
    Offer,
    ProviderCapabilities,
    ProviderContext,
    ProviderName,
)

TINY = ProviderName("tiny")
SETTINGS: dict[str, Any] = {"url": "", "key": None, "key_file": None, "call_timeout_s": 30.0, "launch_timeout_s": 60.0}
STATES = {
    "starting": InstanceState.BOOTING,
    "up": InstanceState.RUNNING,
    "stopping": InstanceState.TERMINATING,
    "dead": InstanceState.GONE,
}
ERRORS: dict[str, type[ProviderError]] = {
    "full": NoCapacity,
    "quota": QuotaExceeded,
    "bad-key": AuthFailed,
    "invalid": InvalidRequest,
    "no-such-machine": NotFound,
}


class TinyProvider:
    fresh = timedelta(seconds=120)

    def __init__(self, context: ProviderContext) -> None:
        unknown = [f"{key}: unknown key" for key in context.settings if key not in SETTINGS]
        if unknown:
            raise ConfigError("[providers.tiny]", unknown)
        self._settings = {**SETTINGS, **context.settings}
        self._cluster, self._now, self._started_at = context.cluster, context.now, context.now()
        path = self._settings.pop("key_file")
        if path is not None:
            try:
                self._settings["key"] = Path(path).read_text().strip()
            except OSError as error:
                raise ConfigError(str(path), [f"cannot be read: {error.strerror}"]) from error
        key = self._settings.pop("key")
        self._open = lambda: aiohttp.ClientSession(
            self._settings["url"],
            headers={"Authorization": f"Bearer {key}"},
            connector=aiohttp.TCPConnector(force_close=True),
        )

    @property
    def name(self) -> ProviderName:
        return TINY

    @property
    def capabilities(self) -> ProviderCapabilities:
        return ProviderCapabilities(user_data_max_b=65536, user_data_private=False)

    async def offers(self) -> Sequence[Offer]:
        return [
            Offer(
                TINY, row["region"], "", row["name"], row["gpu"], row["gpus"], row["vram"], row["cpus"],
                row["ram"] * 1024, row["usd"], available=row["free"], price_as_of=self._now(),
            )
            for row in (await self._call("GET", "/types", "offers"))["data"]
        ]  # fmt: skip

    async def launch(self, request: LaunchRequest) -> Instance:
        body = {
            "name": request.token,
            "type": request.offer.instance_type,
            "region": request.offer.region,
            "user_data": request.user_data,
            "tags": {**request.tags, CLUSTER_TAG: request.cluster, MACHINE_TAG: request.token},
        }
        return self._instance((await self._call("POST", "/machines", "launch", body))["data"], request.offer)

    async def get(self, instance: Instance) -> Instance:
        try:
            return self._instance((await self._call("GET", f"/machines/{instance.id}", "get"))["data"])
        except NotFound as error:
            raise self._not_found(instance, error) from None

    async def list(self) -> Sequence[Instance]:
        rows: list[dict[str, Any]] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await self._call("GET", f"/machines?after={cursor}" if cursor else "/machines", "list")
            rows += page["data"]
            cursor = page.get("next")
        return [self._instance(row) for row in rows if row["tags"].get(CLUSTER_TAG) == self._cluster]

    async def terminate(self, instance: Instance) -> None:
        try:
            await self._call("POST", f"/machines/{instance.id}/end", "terminate", {})
        except NotFound as error:
            raise self._not_found(instance, error) from None

    async def check(self) -> str:
        return str((await self._call("GET", "/me", "check"))["data"])

    async def aclose(self) -> None:
        return

    def _not_found(self, instance: Instance, error: NotFound) -> ProviderError:
        """The error for a machine that is not found: Transient while it may be new."""
        if self._now() - (instance.launched_at or self._started_at) >= self.fresh:
            return error
        return Transient("not known yet", provider=TINY, operation=error.operation)

    def _instance(self, row: dict[str, Any], offer: Offer | None = None) -> Instance:
        prices = {"h100x1": 2.5, "h100x8": 20.0, "a10x1": 0.75}
        state = STATES.get(row["state"], InstanceState.UNKNOWN)
        return Instance(
            TINY,
            InstanceId(row["id"]),
            row["name"],
            state,
            region=row["region"],
            instance_type=row["type"],
            public_ip=row["ip"] or "",
            launched_at=datetime.fromisoformat(row["born"]),
            usd_per_hour=offer.usd_per_hour if offer else prices[row["type"]],
            reason="it died" if state is InstanceState.GONE else "",
            vendor_state=row["state"],
        )

    async def _call(self, method: str, path: str, operation: str, body: Any = None) -> dict[str, Any]:
        """One call, sent once. An unclear answer is Uncertain for a change and Transient for a read."""
        unclear: type[ProviderError] = Transient if body is None else Uncertain
        limit_s = self._settings["launch_timeout_s" if operation == "launch" else "call_timeout_s"]
        try:
            async with (
                self._open() as http,
                http.request(method, path, json=body, timeout=aiohttp.ClientTimeout(total=limit_s)) as answer,
            ):
                status, text, wait = answer.status, await answer.text(), answer.headers.get("Retry-After")
        except aiohttp.ClientConnectorError as error:
            raise Transient(f"cannot connect: {error}", provider=TINY, operation=operation) from None
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise unclear(f"no answer: {type(error).__name__}", provider=TINY, operation=operation) from None
        try:
            found = json.loads(text)
        except ValueError:
            raise unclear(f"HTTP {status}, not JSON", provider=TINY, operation=operation) from None
        if status < 400:
            assert isinstance(found, dict)
            return found
        code = str(found.get("error"))
        if status == 429:
            seconds = float(wait) if wait else None
            raise RateLimited(code, retry_after_s=seconds, provider=TINY, operation=operation)
        kind = unclear if status >= 500 else ERRORS.get(code, InvalidRequest)
        raise kind(f"HTTP {status}: {code}", provider=TINY, operation=operation)


def create(context: ProviderContext) -> TinyProvider:
    return TinyProvider(context)
