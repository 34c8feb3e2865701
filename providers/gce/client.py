"""Calls of Google's APIs through its SDK, in threads, with errors of the contract."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

from meshd.errors import AuthFailed, InvalidRequest, ProviderError, Transient, Uncertain
from providers._answers import MAX_VENDOR_TEXT, Answer, retry_after_s, unclear
from providers._reads import until_end
from providers._settings import place_of, secret_of
from providers._threads import Workers
from providers.gce.errors import GCE, refusal_of_answer, to_error
from providers.gce.sdk import Sdk, installed, sdk_of_google
from providers.gce.settings import GceSettings, key_info

T = TypeVar("T")
R = TypeVar("R")
Row = Mapping[str, Any]
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
RESOURCE_MANAGER = "https://cloudresourcemanager.googleapis.com"
PAGE = 500
SKU_PAGE = 5000
COMPUTE_SERVICE = "6F81-5844-456A"
BILLING_API = "cloudbilling.googleapis.com"
PRICES_TIMEOUT_S = 150.0
"""For all SKUs: about seven pages of several megabytes."""
CHANGES = frozenset({"launch", "terminate", "create_image", "delete_image"})
_HARMLESS = frozenset({"", "NO_RESULTS_ON_PAGE"})


class Gce:
    """The Compute API of one project.

    The SDK repeats no call. Creates and deletes use a client that opens a new connection for each call: a kept one that
    the server closes just when a create is sent would make that create unclear.

    Raises:
        ConfigError: the service account's key cannot be read or is invalid.
        ModuleNotFoundError: the SDK is not installed.
    """

    def __init__(self, settings: GceSettings) -> None:
        if not installed():
            raise ModuleNotFoundError("No module named 'google.cloud.compute_v1'", name="google.cloud.compute_v1")
        self._settings = settings
        given = (settings.service_account, settings.service_account_file, "gce_service_account")
        self._key = secret_of(*given, one_line=False)
        if self._key is not None:
            key_info(self._key, place_of(*given, "[providers.gce] service_account"))
        self._workers = Workers(GCE, settings.threads)
        self._clients: dict[tuple[str, bool], Any] = {}
        self._lock = threading.Lock()
        self._credentials: Any = None
        self._project = settings.project
        self._who = ""

    async def insert(self, zone: str, body: Row, request_id: str) -> Row:
        """instances.insert; returns the operation."""

        def call(sdk: Sdk) -> Row:
            instance = sdk.compute.Instance()
            sdk.parse(body, sdk.compute.Instance.pb(instance))
            client = self._client(sdk, "InstancesClient", changes=True)
            request = sdk.compute.InsertInstanceRequest(
                project=self._project, zone=zone, instance_resource=instance, request_id=request_id
            )
            return self._row(sdk, client.insert_unary(request, **self._once(launch=True)), "operation", "launch")

        return await self._do(call, "launch", changes=True, timeout_s=self._settings.launch_timeout_s)

    async def bulk_insert(self, zone: str, body: Row, request_id: str) -> Row:
        """instances.bulkInsert; returns the operation."""

        def call(sdk: Sdk) -> Row:
            resource = sdk.compute.BulkInsertInstanceResource()
            sdk.parse(body, sdk.compute.BulkInsertInstanceResource.pb(resource))
            client = self._client(sdk, "InstancesClient", changes=True)
            request = sdk.compute.BulkInsertInstanceRequest(
                project=self._project,
                zone=zone,
                bulk_insert_instance_resource_resource=resource,
                request_id=request_id,
            )
            return self._row(sdk, client.bulk_insert_unary(request, **self._once(launch=True)), "operation", "launch")

        return await self._do(call, "launch", changes=True, timeout_s=self._settings.launch_timeout_s)

    async def delete(self, zone: str, name: str) -> Row:
        """instances.delete; returns the operation."""

        def call(sdk: Sdk) -> Row:
            client = self._client(sdk, "InstancesClient", changes=True)
            request = sdk.compute.DeleteInstanceRequest(project=self._project, zone=zone, instance=name)
            return self._row(sdk, client.delete_unary(request, **self._once()), "operation", "terminate")

        return await self._do(call, "terminate", changes=True)

    async def instance(self, zone: str, name: str, operation: str = "get") -> Row:
        """instances.get."""

        def call(sdk: Sdk) -> Row:
            client = self._client(sdk, "InstancesClient")
            request = sdk.compute.GetInstanceRequest(project=self._project, zone=zone, instance=name)
            return self._row(sdk, client.get(request, **self._once()), "instance", operation)

        return await self._do(call, operation)

    async def serial_port(self, zone: str, name: str, last_b: int) -> str:
        """instances.getSerialPortOutput of port 1: the newest `last_b` bytes."""

        def call(sdk: Sdk) -> str:
            client = self._client(sdk, "InstancesClient")
            request = sdk.compute.GetSerialPortOutputInstanceRequest(
                project=self._project, zone=zone, instance=name, port=1, start=-last_b
            )
            row = self._row(sdk, client.get_serial_port_output(request, **self._once()), "serialPortOutput", "console")
            return str(row.get("contents") or "")

        return await self._do(call, "console")

    async def instances(self, wanted: str, operation: str = "list") -> list[Row]:
        """instances.aggregatedList by filter: all zones, all pages, or an error."""
        scopes = await self._aggregated("InstancesClient", "AggregatedListInstancesRequest", wanted, operation)
        return [row for part in scopes.values() for row in part.get("instances") or ()]

    async def disks(self) -> list[Row]:
        """disks.aggregatedList: all zones and regions, all pages, or an error."""
        scopes = await self._aggregated("DisksClient", "AggregatedListDisksRequest", "", "billed")
        return [row for part in scopes.values() for row in part.get("disks") or ()]

    async def addresses(self) -> list[Row]:
        """addresses.aggregatedList: all regions and the global ones, all pages, or an error."""
        scopes = await self._aggregated("AddressesClient", "AggregatedListAddressesRequest", "", "billed")
        return [row for part in scopes.values() for row in part.get("addresses") or ()]

    async def snapshots(self) -> list[Row]:
        """snapshots.list, all pages."""
        return await self._global("SnapshotsClient", "ListSnapshotsRequest", "snapshotList", "", dict, "billed")

    async def _global(
        self, client_name: str, request_name: str, kind: str, wanted: str, read: Callable[[Row], R], operation: str
    ) -> list[R]:
        """What a `list` of the whole project has: all pages, or an error."""

        def call(sdk: Sdk) -> list[R]:
            client, found = self._client(sdk, client_name), list[R]()
            request = getattr(sdk.compute, request_name)(project=self._project, filter=wanted, max_results=PAGE)
            for page in self._pages(client.list, request):
                row = self._row(sdk, page, kind, operation)
                _must_be_complete(row, operation)
                found += [read(one) for one in row.get("items") or ()]
            return found

        return await self._do(call, operation)

    async def insert_image(self, body: Row, request_id: str) -> Row:
        """images.insert; returns the operation."""

        def call(sdk: Sdk) -> Row:
            image = sdk.compute.Image()
            sdk.parse(body, sdk.compute.Image.pb(image))
            client = self._client(sdk, "ImagesClient", changes=True)
            request = sdk.compute.InsertImageRequest(project=self._project, image_resource=image, request_id=request_id)
            return self._row(sdk, client.insert_unary(request, **self._once()), "operation", "create_image")

        return await self._do(call, "create_image", changes=True)

    async def image(self, name: str, operation: str) -> Row:
        """images.get."""

        def call(sdk: Sdk) -> Row:
            client = self._client(sdk, "ImagesClient")
            request = sdk.compute.GetImageRequest(project=self._project, image=name)
            return self._row(sdk, client.get(request, **self._once()), "image", operation)

        return await self._do(call, operation)

    async def images(self, wanted: str, read: Callable[[Row], R], operation: str = "images") -> list[R]:
        """images.list by filter: all pages, or an error. To save memory, `read` converts each image as it comes."""
        return await self._global("ImagesClient", "ListImagesRequest", "imageList", wanted, read, operation)

    async def delete_image(self, name: str) -> Row:
        """images.delete; returns the operation."""

        def call(sdk: Sdk) -> Row:
            client = self._client(sdk, "ImagesClient", changes=True)
            request = sdk.compute.DeleteImageRequest(project=self._project, image=name)
            return self._row(sdk, client.delete_unary(request, **self._once()), "operation", "delete_image")

        return await self._do(call, "delete_image", changes=True)

    async def machine_types(self, wanted: str, operation: str = "offers") -> dict[str, Row]:
        """machineTypes.aggregatedList by filter; by scope."""
        return await self._aggregated("MachineTypesClient", "AggregatedListMachineTypesRequest", wanted, operation)

    async def accelerator_types(self, operation: str = "offers") -> dict[str, Row]:
        """acceleratorTypes.aggregatedList; by scope."""
        request = "AggregatedListAcceleratorTypesRequest"
        return await self._aggregated("AcceleratorTypesClient", request, "", operation)

    async def operation(self, zone: str, name: str) -> Row:
        """zoneOperations.get."""

        def call(sdk: Sdk) -> Row:
            client = self._client(sdk, "ZoneOperationsClient")
            request = sdk.compute.GetZoneOperationRequest(project=self._project, zone=zone, operation=name)
            return self._row(sdk, client.get(request, **self._once()), "operation", "launch")

        return await self._do(call, "launch")

    async def operations_on(self, zone: str, name: str, operation: str) -> list[Row]:
        """zoneOperations.list for one machine, all pages."""

        def call(sdk: Sdk) -> list[Row]:
            client = self._client(sdk, "ZoneOperationsClient")
            wanted = f'targetLink eq ".*/zones/{zone}/instances/{name}"'
            request = sdk.compute.ListZoneOperationsRequest(
                project=self._project, zone=zone, filter=wanted, max_results=PAGE
            )
            pages = [self._row(sdk, page, "operationList", operation) for page in self._pages(client.list, request)]
            return [row for page in pages for row in page.get("items") or ()]

        return await self._do(call, operation)

    async def skus(self, to_rate: Callable[[Row], R | None]) -> list[R]:
        """The Compute Engine's SKUs of the Cloud Billing Catalog, all pages.

        There are tens of thousands and no filter. To save memory, `to_rate` converts each SKU as it comes.

        Raises:
            AuthFailed: the credentials are refused, or the API is disabled; the text says how to enable it.
        """

        def call(sdk: Sdk) -> list[R]:
            found: list[R] = []
            query = {"currencyCode": "USD", "pageSize": str(SKU_PAGE)}
            with self._web_session(sdk) as session:
                for page in until_end(self._sku_pages(session, query), provider=GCE, operation="prices"):
                    found += [rate for rate in map(to_rate, page["skus"]) if rate is not None]
            return found

        try:
            return await self._do(call, "prices", timeout_s=PRICES_TIMEOUT_S)
        except AuthFailed as error:
            text = f"{error.text} (prices need the Cloud Billing API: gcloud services enable {BILLING_API})"
            raise AuthFailed(text, provider=GCE, operation="prices", vendor_text=error.vendor_text) from error

    def _sku_pages(self, session: Any, query: dict[str, str]) -> Iterator[Row]:
        while True:
            page = self._sku_page(session, query)
            yield page
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = str(page["nextPageToken"])

    def _web_session(self, sdk: Sdk) -> Any:
        """An HTTP session with the credentials. It repeats a call only when its token was refused."""
        credentials = self._credentials
        # As the Compute client does: sign tokens locally instead of requesting them.
        if hasattr(credentials, "with_always_use_jwt_access"):
            credentials = credentials.with_always_use_jwt_access(True)
        session = sdk.session(credentials)
        sdk.cap(session)
        return session

    def _sku_page(self, session: Any, query: Mapping[str, str]) -> Row:
        base = self._settings.billing_endpoint or self._settings.api_endpoint or f"https://{BILLING_API}"
        url = f"{base.rstrip('/')}/v1/services/{COMPUTE_SERVICE}/skus"
        response = session.get(url, params=query, timeout=self._settings.call_timeout_s, allow_redirects=False)
        answer = _answer_of(response)
        if answer.status != 200:
            raise to_error(refusal_of_answer(answer), operation="prices", changes=False)
        if answer.is_json and isinstance(answer.body.get("skus"), list):
            page: Row = answer.body
            return page
        raise Transient("the answer is not what the Cloud Billing API promises", provider=GCE, operation="prices")

    @property
    def project(self) -> str:
        """The project's id; "" before the first call when the id comes from the credentials."""
        return self._project

    @property
    def who(self) -> str:
        """Project and identity of the credentials; complete after the first call."""
        return f"project {self._project}, {self._who}"

    async def granted(self, permissions: Iterable[str]) -> frozenset[str] | None:
        """Which of the permissions the credentials have in the project, by projects.testIamPermissions.

        The call is free and needs no permission, but belongs to another API. None when that API does not answer.
        """
        asked = {"permissions": sorted(permissions)}

        def call(sdk: Sdk) -> frozenset[str] | None:
            base = self._settings.api_endpoint.rstrip("/") or RESOURCE_MANAGER
            url = f"{base}/v1/projects/{self._project}:testIamPermissions"
            with self._web_session(sdk) as session, suppress(sdk.wire_fault, ValueError):
                answer = session.post(url, json=asked, timeout=self._settings.call_timeout_s, allow_redirects=False)
                if answer.status_code == 200:
                    return frozenset(answer.json().get("permissions", ()))
            return None

        return await self._do(call, "check")

    async def aclose(self) -> None:
        """Close the connections and accept no more calls."""
        await self._workers.aclose()
        with self._lock:
            for client in self._clients.values():
                client.transport.close()
            self._clients.clear()

    async def _aggregated(self, client_name: str, request_name: str, wanted: str, operation: str) -> dict[str, Row]:
        def call(sdk: Sdk) -> dict[str, Row]:
            client = self._client(sdk, client_name)
            request = getattr(sdk.compute, request_name)(project=self._project, filter=wanted, max_results=PAGE)
            found: dict[str, dict[str, Any]] = {}
            for page in self._pages(client.aggregated_list, request):
                row = self._row(sdk, page, "AggregatedList", operation)
                _must_be_complete(row, operation)
                for scope, part in (row.get("items") or {}).items():
                    into = found.setdefault(scope, {})
                    for key, value in part.items():
                        into[key] = [*into.get(key, ()), *value] if isinstance(value, list) else value
            return dict(found)

        return await self._do(call, operation)

    def _pages(self, function: Callable[..., Any], request: Any) -> Iterable[Any]:
        return until_end(function(request, **self._once()).pages, provider=GCE, operation="list")

    def _once(self, *, launch: bool = False) -> dict[str, Any]:
        """Arguments for a call without retries, with a deadline for its thread."""
        limit_s = self._settings.launch_timeout_s if launch else self._settings.call_timeout_s
        return {"retry": None, "timeout": limit_s}

    def _row(self, sdk: Sdk, message: Any, kind: str, operation: str) -> Row:
        """The message as JSON.

        Raises:
            Uncertain, Transient: its `kind` is not the expected one. The SDK accepts any JSON, such as a proxy's, and
                finds nothing in it. That must not be read as "there are no machines".
        """
        row = sdk.to_dict(message)
        if str(row.get("kind", "")).endswith(kind):
            return row
        text = "the answer is not what the Compute API promises"
        raise unclear(text, changes=operation in CHANGES, provider=GCE, operation=operation)

    async def _do(
        self, call: Callable[[Sdk], T], operation: str, *, changes: bool = False, timeout_s: float | None = None
    ) -> T:
        def guarded() -> T:
            sdk = sdk_of_google()
            try:
                self._open(sdk, operation)
                return call(sdk)
            except sdk.all_errors as error:
                raise _translate(sdk, error, operation, changes) from None

        deadline_s = timeout_s or self._settings.call_timeout_s
        return await self._workers.call(guarded, operation=operation, changes=changes, timeout_s=deadline_s)

    def _open(self, sdk: Sdk, operation: str) -> None:
        """Find credentials and project on the first call."""
        with self._lock:
            if self._credentials is None:
                self._credentials, own_project, self._who = self._find_credentials(sdk)
                self._project = self._project or own_project
        if not self._project:
            text = "no project: set providers.gce.project, as the credentials name none"
            raise InvalidRequest(text, provider=GCE, operation=operation)

    def _find_credentials(self, sdk: Sdk) -> tuple[Any, str, str]:
        if self._settings.anonymous:
            return sdk.auth.credentials.AnonymousCredentials(), "", "without credentials"
        if self._key is not None:
            info = key_info(self._key)
            try:
                found = sdk.service_account.Credentials.from_service_account_info(info, scopes=[SCOPE])
            except ValueError:
                text = "the service account's key cannot be read: create a new one"
                raise AuthFailed(text, provider=GCE, operation="check") from None
            return found, str(info.get("project_id", "")), str(info["client_email"])
        found, project = sdk.auth.default(scopes=[SCOPE])
        return found, str(project or ""), str(getattr(found, "service_account_email", "") or "your own credentials")

    def _client(self, sdk: Sdk, name: str, *, changes: bool = False) -> Any:
        with self._lock:
            if (name, changes) not in self._clients:
                options = sdk.options(api_endpoint=self._settings.api_endpoint.rstrip("/") or None)
                made = getattr(sdk.compute, name)(credentials=self._credentials, client_options=options)
                session = getattr(made.transport, "_session", None)
                if session is not None:
                    sdk.cap(session)
                if changes and session is not None:
                    session.headers["Connection"] = "close"
                self._clients[name, changes] = made
            return self._clients[name, changes]


def _must_be_complete(page: Row, operation: str) -> None:
    """Check that a page is whole. Google leaves out zones that it cannot reach and only adds a warning.

    Raises:
        Transient: zones are missing.
    """
    missing = [str(place) for place in page.get("unreachables") or ()]
    items = page.get("items")
    for scope, part in items.items() if isinstance(items, dict) else ():
        if str((part.get("warning") or {}).get("code", "")) not in _HARMLESS:
            missing.append(scope)
    if str((page.get("warning") or {}).get("code", "")) not in _HARMLESS:
        missing.append("some zones")
    if missing:
        raise Transient(f"incomplete: {', '.join(missing)[:300]} unreachable", provider=GCE, operation=operation)


def _translate(sdk: Sdk, error: Exception, operation: str, changes: bool) -> ProviderError:
    """The contract's error for an exception of the SDK.

    The SDK's exception is not chained, because it contains the request with the user data.
    """
    if isinstance(error, sdk.refused):
        return _refused(error, operation, changes)
    text = f"{type(error).__name__}: {error}"[:MAX_VENDOR_TEXT]
    if isinstance(error, sdk.auth_transport):
        return Transient(f"no access token: {text}", provider=GCE, operation=operation)
    if isinstance(error, sdk.auth_failed):
        return AuthFailed(text, provider=GCE, operation=operation)
    cause = getattr(error.args[0], "reason", None) if error.args else None
    if isinstance(error, sdk.not_sent) or (isinstance(error, sdk.cut) and isinstance(cause, sdk.not_sent)):
        return Transient(f"cannot connect: {text}", provider=GCE, operation=operation)
    kind: type[ProviderError] = Uncertain if changes else Transient
    return kind(text, provider=GCE, operation=operation)


def _refused(error: Any, operation: str, changes: bool) -> ProviderError:
    response = getattr(error, "response", None)
    if response is None:
        answer = Answer(int(error.code or 0), None, str(error.message)[:MAX_VENDOR_TEXT], None)
    else:
        answer = _answer_of(response)
    return to_error(refusal_of_answer(answer), operation=operation, changes=changes)


def _answer_of(response: Any) -> Answer:
    """The answer in a response of the requests library."""
    try:
        body = response.json()
    except ValueError:
        body = None
    wait_s = retry_after_s(response.headers.get("Retry-After"), datetime.now(UTC))
    return Answer(response.status_code, body, response.text[:MAX_VENDOR_TEXT], wait_s)
