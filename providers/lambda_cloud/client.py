"""Calls of Lambda's API: rate limits, deadlines, and errors of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers._answers import unclear
from providers._http import JsonHttp
from providers._limits import shared_spacing
from providers._settings import secret_of
from providers.lambda_cloud.errors import LAMBDA, to_error
from providers.lambda_cloud.settings import LambdaSettings

PREFIX = "/api/v1"


class LambdaApi:
    """Lambda's API. All calls with one key in this process take turns.

    Raises:
        ConfigError: the file with the key cannot be read.
    """

    def __init__(self, settings: LambdaSettings) -> None:
        self._settings = settings
        secret = secret_of(settings.api_key, settings.api_key_file, "lambda_api_key")
        key = secret.get_secret_value() if secret else ""
        self._http = JsonHttp(LAMBDA, settings.base_url.rstrip("/") + PREFIX, key)
        self._calls = shared_spacing(key, "lambda calls", settings.call_spacing_s, settings.max_wait_s)
        self._launches = shared_spacing(key, "lambda launches", settings.launch_spacing_s, settings.max_wait_s)

    async def instance_types(self) -> Mapping[str, Any]:
        """GET /instance-types."""
        return await self._map("GET", "/instance-types", "offers")

    async def instances(self, operation: str = "list") -> list[Mapping[str, Any]]:
        """GET /instances. It has no pages."""
        return await self._list("/instances", operation)

    async def instance(self, instance_id: str, operation: str = "get") -> Mapping[str, Any]:
        """GET /instances/{id}."""
        return await self._map("GET", f"/instances/{instance_id}", operation)

    async def file_systems(self) -> list[Mapping[str, Any]]:
        """GET /file-systems. It has no pages."""
        return await self._list("/file-systems", "billed")

    async def ssh_keys(self, operation: str = "launch") -> list[Mapping[str, Any]]:
        """GET /ssh-keys."""
        return await self._list("/ssh-keys", operation)

    async def launch(self, body: Mapping[str, Any]) -> str:
        """POST /instance-operations/launch; returns the instance's id.

        Raises:
            Uncertain: as for any call that changes something; also when the answer names no instance.
        """
        self._http.need_key("launch")
        await self._launches.turn(provider=LAMBDA, operation="launch")
        data = await self._map("POST", "/instance-operations/launch", "launch", body)
        ids = data.get("instance_ids")
        if not isinstance(ids, list) or not ids:
            raise unclear("the answer names no instance", changes=True, provider=LAMBDA, operation="launch")
        return str(ids[0])

    async def terminate(self, instance_id: str) -> None:
        """POST /instance-operations/terminate."""
        await self._map("POST", "/instance-operations/terminate", "terminate", {"instance_ids": [instance_id]})

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _map(
        self, method: str, path: str, operation: str, body: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        data = await self._data(method, path, operation, body)
        if not isinstance(data, dict):
            raise self._unexpected(operation, changes=body is not None)
        return data

    async def _list(self, path: str, operation: str) -> list[Mapping[str, Any]]:
        data = await self._data("GET", path, operation, None)
        if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
            raise self._unexpected(operation, changes=False)
        return data

    async def _data(self, method: str, path: str, operation: str, body: Mapping[str, Any] | None) -> Any:
        self._http.need_key(operation)
        changes = body is not None
        timeout_s = self._settings.launch_timeout_s if operation == "launch" else self._settings.call_timeout_s
        await self._calls.turn(provider=LAMBDA, operation=operation)
        while operation == "launch" and changes and not self._launches.claim():
            # Waiting for a call's turn has moved it too close to the previous launch.
            await self._calls.turn(provider=LAMBDA, operation=operation)
        answer = await self._http.call(
            method, path, operation=operation, changes=changes, timeout_s=timeout_s, json_body=body
        )
        if answer.status == 200 and answer.is_json and "data" in answer.body:
            return answer.body["data"]
        if answer.status < 400:
            raise self._unexpected(operation, changes=changes, text=answer.text)
        raise to_error(answer, operation=operation, changes=changes)

    def _unexpected(self, operation: str, *, changes: bool, text: str = "") -> Exception:
        words = "Lambda's API gave an unexpected answer"
        return unclear(words, changes=changes, provider=LAMBDA, operation=operation, vendor_text=text)
