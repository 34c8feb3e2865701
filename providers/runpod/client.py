"""Calls of RunPod's REST API v2: rate limits, deadlines, and errors of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from meshd.errors import ProviderError
from providers._answers import Answer, unclear
from providers._http import JsonHttp
from providers._settings import secret_of
from providers.runpod.errors import RUNPOD, clean, to_error
from providers.runpod.rate_limit import shared_windows, wait_s
from providers.runpod.settings import RunpodSettings

PREFIX = "/v2"


class RunpodApi:
    """RunPod's API. All calls with one key in this process share its rate limit.

    Raises:
        ConfigError: the file with the key cannot be read.
    """

    def __init__(self, settings: RunpodSettings) -> None:
        self._settings = settings
        secret = secret_of(settings.api_key, settings.api_key_file, "runpod_api_key")
        key = secret.get_secret_value() if secret else ""
        self._http = JsonHttp(RUNPOD, settings.base_url.rstrip("/") + PREFIX, key)
        self._limit = shared_windows(key, settings.base_url, settings.max_wait_s)

    async def gpu_types(self, cloud: str, count: int, operation: str = "offers") -> list[Mapping[str, Any]]:
        """GET /catalog/gpus, with the free capacity for pods of `count` GPUs in one tier."""
        asked = {"count": str(count), "cloud": cloud.upper()}
        if self._settings.country_codes:
            asked["countryCodes"] = ",".join(self._settings.country_codes)
        if self._settings.min_cuda_version:
            asked["minCudaVersion"] = self._settings.min_cuda_version
        return await self._catalogue("gpus", asked, ("id", "memory", "price", "maxCount"), operation)

    async def cpu_flavours(self, vcpus: int) -> list[Mapping[str, Any]]:
        """GET /catalog/cpus, with the free capacity for pods of `vcpus` vCPUs."""
        asked = {"vcpuCount": str(vcpus)}
        return await self._catalogue("cpus", asked, ("id", "vcpu", "ramGbPerVcpu", "price"))

    async def _catalogue(
        self, what: str, asked: Mapping[str, str], needed: tuple[str, ...], operation: str = "offers"
    ) -> list[Mapping[str, Any]]:
        query = urlencode({"include": "AVAILABILITY", "product": "POD", **asked}, safe=",")
        answer = await self._call("GET", f"/catalog/{what}?{query}", operation, success=200)
        return self._rows(answer, what, needed, operation)

    async def pods(self, operation: str = "list") -> list[Mapping[str, Any]]:
        """GET /pods, including those of Instant Clusters. It has no pages."""
        answer = await self._call("GET", "/pods?includeClusterPods=true", operation, success=200)
        return self._rows(answer, "pods", ("id", "status"), operation)

    async def network_volumes(self) -> list[Mapping[str, Any]]:
        """GET /network-volumes. It has no pages."""
        answer = await self._call("GET", "/network-volumes", "billed", success=200)
        return self._rows(answer, "networkVolumes", ("id",), "billed")

    async def pod(self, pod_id: str) -> Mapping[str, Any]:
        """GET /pods/{id}."""
        answer = await self._call("GET", f"/pods/{quote(pod_id, safe='')}", "get", success=200)
        return self._pod(answer, "get", changes=False)

    async def create(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """POST /pods.

        Raises:
            Uncertain: as for any call that changes something; also when the answer names no pod.
        """
        answer = await self._call("POST", "/pods", "launch", success=201, body=body)
        return self._pod(answer, "launch", changes=True)

    async def delete(self, pod_id: str) -> None:
        """DELETE /pods/{id}."""
        await self._call("DELETE", f"/pods/{quote(pod_id, safe='')}", "terminate", success=204)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _call(
        self, method: str, path: str, operation: str, *, success: int, body: Mapping[str, Any] | None = None
    ) -> Answer:
        self._http.need_key(operation)
        changes = method != "GET"
        timeout_s = self._settings.launch_timeout_s if method == "POST" else self._settings.call_timeout_s
        await self._limit.turn(provider=RUNPOD, operation=operation)
        answer = await self._http.call(
            method, path, operation=operation, changes=changes, timeout_s=timeout_s, json_body=body
        )
        quota = answer.headers.get("ratelimit", "")
        self._limit.note(quota)
        if answer.status == success:
            return answer
        if answer.status < 400:
            raise self._unexpected(answer, operation, changes=changes)
        if answer.retry_after_s is None:
            answer = replace(answer, retry_after_s=wait_s(quota))
        raise to_error(answer, operation=operation, changes=changes)

    def _rows(self, answer: Answer, name: str, needed: tuple[str, ...], operation: str) -> list[Mapping[str, Any]]:
        rows = answer.body.get(name) if answer.is_json else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) and row.keys() >= set(needed) for row in rows):
            raise self._unexpected(answer, operation, changes=False)
        return rows

    def _pod(self, answer: Answer, operation: str, *, changes: bool) -> Mapping[str, Any]:
        if not answer.is_json or not answer.body.get("id"):
            raise self._unexpected(answer, operation, changes=changes)
        pod: Mapping[str, Any] = answer.body
        return pod

    @staticmethod
    def _unexpected(answer: Answer, operation: str, *, changes: bool) -> ProviderError:
        words = f"RunPod's API gave an unexpected answer (HTTP {answer.status})"
        text = "" if answer.is_json else clean(answer.text)  # the description of a pod contains its start command
        return unclear(words, changes=changes, provider=RUNPOD, operation=operation, vendor_text=text)
