"""Calls of Paperspace's API: rate limits, pages, deadlines, and errors of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from meshd.errors import InvalidRequest, NotFound, Transient
from providers._answers import unclear
from providers._http import JsonHttp
from providers._limits import shared_spacing
from providers._settings import secret_of
from providers.paperspace.errors import PAPERSPACE, to_error
from providers.paperspace.settings import PaperspaceSettings

PREFIX = "/v1"
PAGE = 120
MAX_PAGES = 500


class PaperspaceApi:
    """Paperspace's API. All calls with one key in this process take turns.

    Raises:
        ConfigError: the file with the key cannot be read.
    """

    def __init__(self, settings: PaperspaceSettings) -> None:
        self._settings = settings
        secret = secret_of(settings.api_key, settings.api_key_file, "paperspace_api_key")
        key = secret.get_secret_value() if secret else ""
        self._http = JsonHttp(PAPERSPACE, settings.base_url.rstrip("/") + PREFIX, key)
        self._calls = shared_spacing(key, "paperspace calls", settings.call_spacing_s, settings.max_wait_s)

    async def session(self) -> Mapping[str, Any]:
        """GET /auth/session; empty when the key is not logged in, which the API answers with null."""
        found = await self._answer("GET", "/auth/session", "check", changes=False, may_be_null=True)
        return found if isinstance(found, dict) else {}

    async def templates(self, operation: str) -> list[Mapping[str, Any]]:
        """GET /os-templates, all pages."""
        return await self._all("/os-templates", {}, operation)

    async def available(self, machine_type: str, region: str) -> bool:
        """GET /machine-availability. A type that the region does not know is not available."""
        query = urlencode({"machineType": machine_type, "region": region})
        try:
            found = await self._map("GET", f"/machine-availability?{query}", "offers", changes=False)
        except (InvalidRequest, NotFound):
            return False
        return found.get("available") is True

    async def machines(self, operation: str = "list") -> list[Mapping[str, Any]]:
        """GET /machines, all pages, all regions."""
        return await self._all("/machines", {}, operation)

    async def public_ips(self) -> list[Mapping[str, Any]]:
        """GET /public-ips, all pages: the static ones. Each has its address as its id."""
        return await self._all("/public-ips", {}, "billed", key="ip")

    async def machine(self, machine_id: str, operation: str) -> Mapping[str, Any]:
        """GET /machines/{id}."""
        found = await self._map("GET", f"/machines/{quote(machine_id, safe='')}", operation, changes=False)
        if "id" not in found:
            raise self._unexpected(operation, changes=False)
        return found

    async def events(self, machine_id: str, operation: str) -> list[Mapping[str, Any]]:
        """GET /machine-events of one machine, all pages; empty for an unknown machine."""
        try:
            return await self._all("/machine-events", {"machineId": machine_id}, operation)
        except NotFound:
            return []

    async def create(self, body: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """POST /machines; returns the machine and its create event.

        Raises:
            Uncertain: as for any call that changes something; also when the answer names no machine.
        """
        found = await self._map("POST", "/machines", "launch", changes=True, body=body)
        data, event = found.get("data"), found.get("event")
        if not isinstance(data, dict) or not data.get("id"):
            raise self._unexpected("launch", changes=True)
        return data, event if isinstance(event, dict) else {}

    async def delete(self, machine_id: str, operation: str = "terminate") -> None:
        """DELETE /machines/{id}. The answer is an event that may still fail."""
        await self._map("DELETE", f"/machines/{quote(machine_id, safe='')}", operation, changes=True)

    async def stop(self, machine_id: str) -> None:
        """PATCH /machines/{id}/stop."""
        await self._map(
            "PATCH", f"/machines/{quote(machine_id, safe='')}/stop", "terminate", changes=True, body={}
        )  # fmt: skip

    async def scripts(self, operation: str) -> list[Mapping[str, Any]]:
        """GET /startup-scripts, all pages, without the scripts' text."""
        return await self._all("/startup-scripts", {}, operation)

    async def create_script(self, name: str, script: str) -> str:
        """POST /startup-scripts; returns the id. A lost answer is Transient: it may leave a script, but no machine."""
        body = {"name": name, "script": script, "isRunOnce": True}
        found = await self._map("POST", "/startup-scripts", "launch", changes=False, body=body)
        if not found.get("id"):
            raise self._unexpected("launch", changes=False)
        return str(found["id"])

    async def delete_script(self, script_id: str, operation: str) -> None:
        """DELETE /startup-scripts/{id}. Does nothing when there is none."""
        try:
            await self._map("DELETE", f"/startup-scripts/{quote(script_id, safe='')}", operation, changes=False)
        except NotFound:
            return

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _all(
        self, path: str, query: Mapping[str, str], operation: str, key: str = "id"
    ) -> list[Mapping[str, Any]]:
        """All items of a list.

        When `nextPage` is missing although there is more, the last item's id is the cursor.

        Raises:
            Transient: the pages do not end, so the list would be incomplete.
        """
        items: dict[str, Mapping[str, Any]] = {}
        cursor = ""
        for _ in range(MAX_PAGES):
            page_query = urlencode({**query, "limit": str(PAGE), **({"after": cursor} if cursor else {})})
            page = await self._map("GET", f"{path}?{page_query}", operation, changes=False)
            rows = page.get("items")
            if not isinstance(rows, list) or not all(isinstance(row, dict) and row.get(key) for row in rows):
                raise self._unexpected(operation, changes=False)
            before = len(items)
            items.update({str(row[key]): row for row in rows})
            following = str(page.get("nextPage") or "")
            if not page.get("hasMore", bool(following)):
                return list(items.values())
            cursor = following or (str(rows[-1][key]) if rows else "")
            if not cursor or len(items) == before:
                break
        raise Transient("the pages of the list do not end", provider=PAPERSPACE, operation=operation)

    async def _map(
        self, method: str, path: str, operation: str, *, changes: bool, body: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        found = await self._answer(method, path, operation, changes=changes, body=body)
        assert isinstance(found, dict)
        return found

    async def _answer(
        self,
        method: str,
        path: str,
        operation: str,
        *,
        changes: bool,
        body: Mapping[str, Any] | None = None,
        may_be_null: bool = False,
    ) -> Any:
        self._http.need_key(operation)
        await self._calls.turn(provider=PAPERSPACE, operation=operation)
        timeout_s = self._settings.launch_timeout_s if operation == "launch" else self._settings.call_timeout_s
        answer = await self._http.call(
            method, path, operation=operation, changes=changes, timeout_s=timeout_s, json_body=body
        )
        if 200 <= answer.status < 300 and (answer.is_json or (may_be_null and answer.text.strip() == "null")):
            return answer.body
        # An answer to a startup script may repeat the script, which holds a secret.
        text = "" if path == "/startup-scripts" else answer.text
        if answer.status < 400:
            raise self._unexpected(operation, changes=changes, text=text)
        raise to_error(replace(answer, text=text), operation=operation, changes=changes)

    def _unexpected(self, operation: str, *, changes: bool, text: str = "") -> Exception:
        words = "Paperspace's API gave an unexpected answer"
        return unclear(words, changes=changes, provider=PAPERSPACE, operation=operation, vendor_text=text)
