"""The parts of Google's SDK that the adapter uses. They are imported in a thread, on the first call.

Importing `google.cloud.compute_v1` imports the clients of a hundred services. The adapter uses five, so it imports
these modules alone, without running the package's `__init__`: that takes half the time and saves 30 MB. Most of the
rest is one module with the messages of the whole API.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import ModuleType, SimpleNamespace
from typing import Any

ANSWER_MAX_B = 64 * 1024 * 1024
"""A page of SKUs is several MB."""
PACKAGE = "google.cloud.compute_v1"
SERVICES = {
    "AcceleratorTypesClient": "accelerator_types",
    "AddressesClient": "addresses",
    "DisksClient": "disks",
    "ImagesClient": "images",
    "InstancesClient": "instances",
    "MachineTypesClient": "machine_types",
    "SnapshotsClient": "snapshots",
    "ZoneOperationsClient": "zone_operations",
}
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Sdk:
    """The SDK's parts.

    Attributes:
        compute: the messages of the Compute API and the clients of SERVICES.
        session: makes an HTTP session with credentials, for Google's other APIs.
        cap: makes a session reject answers that are too large.
        all_errors: all exceptions of failed calls.
        not_sent: exceptions of calls that were not sent.
    """

    compute: Any
    auth: ModuleType
    service_account: ModuleType
    session: Callable[[Any], Any]
    cap: Callable[[Any], None]
    options: Any
    to_dict: Callable[[Any], dict[str, Any]]
    parse: Callable[[Mapping[str, Any], Any], Any]
    refused: type[Exception]
    auth_transport: type[Exception]
    auth_failed: type[Exception]
    all_errors: tuple[type[Exception], ...]
    not_sent: tuple[type[Exception], ...]
    cut: type[Exception]
    wire_fault: type[Exception]


def installed() -> bool:
    """Whether the SDK is installed. Imports nothing large."""
    return importlib.util.find_spec("google") is not None and importlib.util.find_spec(PACKAGE) is not None


def sdk_of_google() -> Sdk:
    """The SDK. The first call takes seconds; other threads wait for it."""
    with _LOCK:
        return _loaded()


@lru_cache(maxsize=1)
def _loaded() -> Sdk:
    import google.auth
    import requests
    from google.api_core import exceptions
    from google.api_core.client_options import ClientOptions
    from google.auth import exceptions as auth_errors
    from google.auth.transport.requests import AuthorizedSession
    from google.oauth2 import service_account
    from google.protobuf import json_format
    from urllib3 import exceptions as wire

    return Sdk(
        compute=_compute(),
        auth=google.auth,
        service_account=service_account,
        session=AuthorizedSession,
        cap=partial(_cap, requests),
        options=ClientOptions,
        to_dict=lambda message: json_format.MessageToDict(type(message).pb(message)),
        parse=json_format.ParseDict,
        refused=exceptions.GoogleAPICallError,
        auth_transport=auth_errors.TransportError,
        auth_failed=auth_errors.GoogleAuthError,
        all_errors=(
            exceptions.GoogleAPIError,
            auth_errors.GoogleAuthError,
            requests.RequestException,
            json_format.Error,
        ),
        not_sent=(
            requests.exceptions.ConnectTimeout,
            requests.exceptions.SSLError,
            requests.exceptions.ProxyError,
            wire.NewConnectionError,
            wire.ConnectTimeoutError,
        ),
        cut=requests.exceptions.ConnectionError,
        wire_fault=requests.RequestException,
    )


def _cap(requests: Any, session: Any) -> None:
    """Make a session reject answers of more than ANSWER_MAX_B bytes; by default it reads answers of any size."""

    class Capped(requests.adapters.HTTPAdapter):  # type: ignore[misc]
        def send(self, request: Any, stream: bool = False, **options: Any) -> Any:
            response = super().send(request, stream=True, **options)
            parts, size_b = [], 0
            for part in response.iter_content(64 * 1024):
                size_b += len(part)
                if size_b > ANSWER_MAX_B:
                    response.close()
                    text = f"the answer is larger than {ANSWER_MAX_B} bytes"
                    raise requests.exceptions.ConnectionError(text, request=request)
                parts.append(part)
            response._content = b"".join(parts)
            return response

    for scheme in ("https://", "http://"):
        session.mount(scheme, Capped())


def _compute() -> Any:
    """Messages and clients. The whole package when it is already imported or has another layout."""
    spec = None if PACKAGE in sys.modules else importlib.util.find_spec(PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        return importlib.import_module(PACKAGE)
    # A package object without its __init__: submodules can be imported and import each other as usual.
    bare = ModuleType(PACKAGE)
    bare.__spec__, bare.__path__ = spec, list(spec.submodule_search_locations)
    sys.modules[PACKAGE] = bare
    try:
        return _parts()
    except (ImportError, AttributeError):
        pass  # import the whole package instead; keep what was imported, since messages can be declared only once
    finally:
        del sys.modules[PACKAGE]  # other code that imports the package must get all of it
    return importlib.import_module(PACKAGE)


def _parts() -> Any:
    messages = importlib.import_module(f"{PACKAGE}.types.compute")
    clients = {
        client: getattr(importlib.import_module(f"{PACKAGE}.services.{service}"), client)
        for client, service in SERVICES.items()
    }
    return SimpleNamespace(**{**vars(messages), **clients})
