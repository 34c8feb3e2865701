"""Spot pods and their prices, through RunPod's SDK and its GraphQL API. Everything else uses the REST API.

The SDK is optional (`meshd[runpod]`) and takes seconds to load, so it is imported in a thread, on the first call. Its
calls are synchronous with a timeout of 30 s. It hides HTTP status and headers except for 401, and raises the decoder's
exception for an answer that is not JSON.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from meshd.codes import FaultCode
from meshd.errors import AuthFailed, ConfigError, Fault, ProviderError, Transient
from meshd.provider_api import Instance, LaunchRequest
from meshd.runtime.secretfile import source_of
from providers._answers import MAX_VENDOR_TEXT, Answer, unclear
from providers._settings import secret_of
from providers._threads import Workers
from providers.runpod.errors import RUNPOD, clean, to_error, to_graphql_error
from providers.runpod.names import PodKind
from providers.runpod.settings import RunpodSettings
from providers.runpod.spot_mapping import DEPLOY, Bid, bids_query, deploy_mutation, to_bids, to_made

EXTRA = "meshd[runpod]"
THREADS = 4
URL_VARIABLE = "RUNPOD_API_BASE_URL"
"""The environment variable from which the SDK reads the API's address at each call. It has no argument for it."""


class SpotApi:
    """RunPod's GraphQL API through its SDK.

    Raises:
        ConfigError: the SDK is not installed, or the file with the key cannot be read.
    """

    def __init__(self, settings: RunpodSettings) -> None:
        if find_spec("runpod") is None:
            problem = f"spot: needs RunPod's SDK, which is not installed: pip install '{EXTRA}', or set spot = false"
            raise ConfigError("[providers.runpod]", [Fault(problem, code=FaultCode.SDK_MISSING)])
        self._settings = settings
        self._secret = secret_of(settings.api_key, settings.api_key_file, "runpod_api_key")
        self._workers = Workers(RUNPOD, THREADS)

    async def bids(
        self, cloud: str, count: int, places: Sequence[str], operation: str = "offers"
    ) -> dict[tuple[str, str], Bid]:
        """The lowest bids by (GPU id, place) for pods of `count` GPUs in one tier."""
        data = await self._ask(bids_query(cloud, count, places), operation, self._settings.call_timeout_s)
        try:
            return to_bids(data, places)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise _unexpected(operation, changes=False) from None

    async def rent(self, request: LaunchRequest, kind: PodKind) -> Instance:
        """Rent one spot pod at the offer's price.

        Raises:
            Uncertain: as for any call that changes something; also when the answer names no pod.
        """
        query = deploy_mutation(request, kind, self._settings)
        data = await self._ask(query, "launch", self._settings.launch_timeout_s, changes=True)
        pod = data.get(DEPLOY)
        if not isinstance(pod, dict) or not pod.get("id"):
            raise _unexpected("launch", changes=True)
        return to_made(pod, request)

    async def aclose(self) -> None:
        """Accept no more calls."""
        await self._workers.aclose()

    async def _ask(self, query: str, operation: str, timeout_s: float, *, changes: bool = False) -> Mapping[str, Any]:
        if self._secret is None:
            place = source_of("runpod_api_key")
            text = f"no API key: put it into {place}, or set providers.runpod.api_key_file"
            raise AuthFailed(text, provider=RUNPOD, operation=operation)
        key = self._secret.get_secret_value()

        def call() -> Any:
            return self._send(query, key, operation, changes)

        answer = await self._workers.call(call, operation=operation, changes=changes, timeout_s=timeout_s)
        data = answer.get("data") if isinstance(answer, dict) else None
        if isinstance(data, dict):
            return data
        if isinstance(answer, dict) and isinstance(answer.get("status"), int):  # a problem document of the gateway
            raise to_error(Answer(answer["status"], answer, "", None), operation=operation, changes=changes)
        raise _unexpected(operation, changes=changes)

    def _send(self, query: str, key: str, operation: str, changes: bool) -> Any:
        """Make the call, in a thread. The SDK's exceptions may contain the query with the start command: drop them."""
        run, meaning = _sdk()
        os.environ[URL_VARIABLE] = self._settings.base_url.rstrip("/")
        try:
            return run(query, api_key=key)
        except Exception as error:  # noqa: BLE001  the SDK raises any exception of its libraries
            meant = meaning(error, operation, changes, self._settings.base_url)
        raise meant


def _sdk() -> tuple[Callable[..., Any], Callable[[Exception, str, bool, str], ProviderError]]:
    """The SDK's call, and a function that converts its exceptions."""
    import requests
    from runpod.api.graphql import run_graphql_query
    from runpod.error import AuthenticationError, QueryError
    from urllib3.exceptions import MaxRetryError

    def meaning(error: Exception, operation: str, changes: bool, url: str) -> ProviderError:
        if isinstance(error, AuthenticationError):
            return AuthFailed(f"HTTP 401: {error}", provider=RUNPOD, operation=operation)
        if isinstance(error, QueryError):
            return to_graphql_error(str(error.message or ""), operation=operation, changes=changes)
        if isinstance(error, requests.exceptions.JSONDecodeError):
            return to_graphql_error(str(error.doc)[:MAX_VENDOR_TEXT], operation=operation, changes=changes)
        cause = error.args[0] if error.args else None
        if isinstance(error, requests.exceptions.ConnectTimeout) or isinstance(cause, MaxRetryError):
            return Transient(f"cannot connect to {url}", provider=RUNPOD, operation=operation)
        text = f"the call failed: {type(error).__name__}"
        return unclear(text, changes=changes, provider=RUNPOD, operation=operation, vendor_text=clean(str(error))[:400])

    return run_graphql_query, meaning


def _unexpected(operation: str, *, changes: bool) -> ProviderError:
    text = "RunPod's GraphQL API gave an unexpected answer"
    return unclear(text, changes=changes, provider=RUNPOD, operation=operation)
