"""A stand-in for the Compute API v1, with state, operations that fail after the call, and faults.

It accepts calls without credentials, and tokens that any service account's key has signed.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from aiohttp import web

from deploy.sandbox.clouds.gce_billing import SKUS_PATH, BillingCatalog, not_switched_on
from deploy.sandbox.clouds.gce_bodies import BASE, boot_disk_gib, instance_body, number
from deploy.sandbox.clouds.gce_images import OWN, ImageStore, StoredImage, matching
from deploy.sandbox.clouds.gce_operations import Failure, Operation, Operations
from deploy.sandbox.clouds.gce_rules import bulk_checked, cards_of, checked, metadata_of, no, single_body
from deploy.sandbox.clouds.gce_types import ACCELERATORS, TYPES, ZONES
from deploy.sandbox.clouds.ledger import Ledger, Life, NewMachine, RentedMachine
from deploy.sandbox.clouds.things import Thing, Things
from meshd.contract.faults import CloudFault, FaultEngine, FaultKind
from meshd.contract.standin import ErrorResponse, StandIn
from providers._prices import shipped

PREFIX = "/compute/v1/projects/{project}"
_FALLBACK_USD_PER_HOUR = 1.0
_PAGE_MAX = 500
_CONSOLE_MAX_B = 1024 * 1024
_TEXT_FILTER = re.compile(r'(\S+) (eq|ne) "(.*)"')
_LABEL_FILTER = re.compile(r"labels\.([a-z0-9_-]+) ?= ?\"?([a-z0-9_-]*)\"?")
#: Refusals that are reported in the operation, after a successful call.
_LATE: dict[FaultKind, Failure] = {
    FaultKind.NO_CAPACITY: (
        503,
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "The zone '{zone}' does not have enough resources available to fulfill the request. Try a different zone.",
    ),
    FaultKind.QUOTA: (403, "QUOTA_EXCEEDED", "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally."),
}
_TOO_FEW: Failure = (
    503,
    "VM_MIN_COUNT_NOT_REACHED",
    "Requested minimum count of VMs could not be created in zone '{zone}'.",
)
_BAD_TOKEN = (
    401,
    "authError",
    "Request had invalid authentication credentials. Expected OAuth 2 access token.",
)
_AT_ONCE = {
    FaultKind.NO_CAPACITY: (503, "insufficientCapacity", "Not enough resources."),
    FaultKind.QUOTA: (403, "quotaExceeded", "Quota exceeded."),
    FaultKind.THROTTLED: (403, "rateLimitExceeded", "Rate Limit Exceeded"),
    FaultKind.AUTH: (403, "forbidden", "Required 'compute.instances.create' permission for 'projects/sandbox'"),
    FaultKind.EXPIRED: _BAD_TOKEN,
    FaultKind.INVALID: (400, "invalid", "Invalid value for field 'resource.machineType'."),
}


P = TypeVar("P", RentedMachine, StoredImage, Thing)


class GceCloud(StandIn):
    """The stand-in, with all routes under /compute/v1.

    Args:
        ledger: the machines.
        faults: decides which faults hit a call.
        image_s: how long an image is pending.
    """

    body_max_b = 4 * 1024 * 1024

    def __init__(self, ledger: Ledger, faults: FaultEngine, image_s: float = 0.0) -> None:
        super().__init__(faults)
        self.ledger = ledger
        self.images = ImageStore(ledger.now, image_s)
        self._prices = shipped("providers.gce")
        self.billing = BillingCatalog(self._prices)
        self._ids: dict[tuple[str, str], str] = {}
        self._bodies: dict[str, dict[str, Any]] = {}
        self._operations = Operations(ledger)
        self._requests: dict[str, Operation] = {}
        self.things = Things(ledger.now)

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The parts of the API that the adapter uses."""
        zone = PREFIX + "/zones/{zone}"
        return [
            web.get(SKUS_PATH, self._skus),
            web.get(PREFIX + "/aggregated/instances", self._list),
            web.get(PREFIX + "/aggregated/disks", self._disks),
            web.get(PREFIX + "/aggregated/addresses", self._addresses),
            web.get(PREFIX + "/global/snapshots", self._snapshots),
            web.get(PREFIX + "/aggregated/machineTypes", self._machine_types),
            web.get(PREFIX + "/aggregated/acceleratorTypes", self._accelerator_types),
            web.post(zone + "/instances", self._insert),
            web.post(zone + "/instances/bulkInsert", self._bulk_insert),
            web.get(zone + "/instances/{name}", self._get),
            web.get(zone + "/instances/{name}/serialPort", self._serial_port),
            web.delete(zone + "/instances/{name}", self._delete),
            web.get(zone + "/operations", self._operation_list),
            web.get(zone + "/operations/{name}", self._operation),
            web.get(PREFIX + "/global/images", self._image_list),
            web.post(PREFIX + "/global/images", self._image_insert),
            web.get(PREFIX + "/global/images/{name}", self._image_get),
            web.delete(PREFIX + "/global/images/{name}", self._image_delete),
            web.post("/v1/projects/{project}:testIamPermissions", self._test_permissions),
        ]

    def operation_of(self, request: web.Request) -> str:
        """The operation, from method and path."""
        path, method = request.path, request.method
        if path.endswith("/skus"):
            return "prices"
        if path.endswith("/aggregated/instances"):
            return "list"
        if path.endswith(("/aggregated/disks", "/aggregated/addresses", "/global/snapshots")):
            return "billed"
        if "/aggregated/" in path:
            return "offers"
        if path.endswith("/serialPort"):
            return "console"
        if "/global/images" in path:
            return {"POST": "create_image", "DELETE": "delete_image"}.get(method, "images")
        if "/instances" in path:
            return {"POST": "launch", "DELETE": "terminate"}.get(method, "get")
        return "other"

    def refusal(self, fault: CloudFault) -> ErrorResponse:
        """Google's reason and text."""
        return no(*_AT_ONCE.get(fault.kind, (fault.status, "backendError", "Backend Error")))

    def permissions_of(self, request: web.Request) -> Iterable[str]:
        """The names in the IAM reference."""
        path, method = request.path, request.method
        if "/aggregated/" in path:
            return (f"compute.{path.rpartition('/')[2]}.list",)
        if path.endswith("/global/snapshots"):
            return ("compute.snapshots.list",)
        if "/operations" in path:
            return ("compute.zoneOperations.list" if path.endswith("/operations") else "compute.zoneOperations.get",)
        if path.endswith("/serialPort"):
            return ("compute.instances.getSerialPortOutput",)
        if "/global/images" in path:
            if method == "POST":
                return ("compute.images.create", "compute.images.setLabels", "compute.disks.useReadOnly")
            read = "compute.images.list" if path.endswith("/images") else "compute.images.get"
            return ("compute.images.delete" if method == "DELETE" else read,)
        if "/instances" in path:
            return ({"POST": "compute.instances.create", "DELETE": "compute.instances.delete"}.get(
                method, "compute.instances.get"
            ),)  # fmt: skip
        return ()

    def denial(self, permission: str) -> ErrorResponse:
        """Google's 403, which names the permission."""
        return no(403, "forbidden", f"Required '{permission}' permission for 'projects/sandbox-project'")

    def refuses_itself(self, operation: str, fault: CloudFault) -> bool:
        """Lack of capacity and quota are reported in the operation; a disabled billing API has its own error."""
        return (operation == "launch" and fault.kind in _LATE) or (
            operation == "prices" and fault.kind is FaultKind.AUTH
        )

    def no_such_path(self) -> ErrorResponse:
        """Google's 404."""
        return no(404, "notFound", "Not Found")

    def admit(self, request: web.Request, operation: str) -> Mapping[str, str]:
        """Accept no credentials, or a service account's token."""
        given = request.headers.get("Authorization")
        if given is not None and not _is_signed(given.removeprefix("Bearer ")):
            raise no(*_BAD_TOKEN)
        return {}

    def forget_requests(self) -> None:
        """Forget the request ids, as Google does after an undocumented time."""
        self._requests.clear()
        self.images.requests.clear()

    async def _test_permissions(self, request: web.Request) -> web.Response:
        """projects.testIamPermissions of the Resource Manager: the granted ones of the queried permissions."""
        asked = (await request.json())["permissions"]
        granted = [permission for permission in asked if not self.faults.denied(permission)]
        return web.json_response({"permissions": granted} if granted else {})

    # --- machines

    async def _insert(self, request: web.Request) -> web.Response:
        zone, request_id = request.match_info["zone"], request.query.get("requestId", "")
        if request_id in self._requests:
            return web.json_response(self._told(request, self._requests[request_id]))
        body = await request.json()
        kind = checked(body, zone)
        image = self._image(body)
        name = str(body["name"])
        taken = self._ids.get((zone, name))
        machine = None if taken is None else self._alive(taken)
        if machine is not None:
            path = f"projects/{request.match_info['project']}/zones/{zone}/instances/{name}"
            raise no(409, "alreadyExists", f"The resource '{path}' already exists")
        operation = self._operations.begin("insert", zone, name)
        self._requests[request_id or operation.name] = operation
        failure = self._why_not(kind.name, zone)
        if failure is not None:
            operation.failure = failure
        else:
            self._made(body, zone, operation, image=image)
        return web.json_response(self._told(request, operation, fresh=True))

    async def _bulk_insert(self, request: web.Request) -> web.Response:
        """All machines, or none: fewer than minCount are removed again, which the operation reports."""
        zone, request_id = request.match_info["zone"], request.query.get("requestId", "")
        if request_id in self._requests:
            return web.json_response(self._told(request, self._requests[request_id]))
        bulk = await request.json()
        kind = bulk_checked(bulk, zone)
        image = self._image(bulk["instanceProperties"])
        names, least = list(bulk["perInstanceProperties"]), int(bulk.get("minCount") or bulk["count"])
        operation = self._operations.begin("bulkInsert", zone, names[0])
        self._requests[request_id or operation.name] = operation
        taken = [name for name in names if (known := self._ids.get((zone, name))) and self._alive(known)]
        room = self.ledger.room(kind.name, zone, zone.rpartition("-")[0])
        failure = self._why_not(kind.name, zone, min(least, len(names)) if room is None else room, least)
        if taken:
            path = f"projects/{request.match_info['project']}/zones/{zone}/instances/{taken[0]}"
            failure = 409, "RESOURCE_ALREADY_EXISTS", f"The resource '{path}' already exists"
        others = [one for one in self._requests.values() if one is not operation]
        if failure is not None:
            operation.failure = failure
        else:
            for place, name in enumerate(self._made_instead(names if room is None else names[:room])):
                part = self._operations.begin("insert", zone, name, group=operation.name)
                operation.parts.append(part)
                self._made(single_body(bulk["instanceProperties"], name, zone), zone, part, place, image)
        if self.call_faults.has(FaultKind.PART_REFUSED):
            status, code, words = _LATE[FaultKind.NO_CAPACITY]
            operation.failure = status, code, words.format(zone=zone)
        operation.never_done = self.call_faults.has(FaultKind.NEVER_DONE)
        shown = others[-1] if others and self.call_faults.has(FaultKind.OTHERS_SHOWN) else operation
        return web.json_response(self._told(request, shown, fresh=True))

    def _made_instead(self, names: list[str]) -> list[str]:
        """The names of the machines that a call makes that is to make these."""
        call_faults = self.call_faults
        if call_faults.has(FaultKind.PART_REFUSED) or call_faults.has(FaultKind.NEVER_DONE):
            return names[: max(1, len(names) // 2)]
        if call_faults.has(FaultKind.TOO_FEW):
            return names[:-1]
        return [*names, f"instance-{number(names[0])[:8]}"] if call_faults.has(FaultKind.TOO_MANY) else names

    def _why_not(self, kind: str, zone: str, room: int = 1, least: int = 1) -> Failure | None:
        call_faults = self.call_faults
        if call_faults.before is not None and call_faults.before.kind in _LATE:
            status, code, words = _LATE[call_faults.before.kind]
        elif not self.ledger.has_capacity(kind, zone, zone.rpartition("-")[0]):
            status, code, words = _LATE[FaultKind.NO_CAPACITY]
        elif room < least:
            status, code, words = _TOO_FEW
        else:
            return None
        return status, code, words.format(zone=zone)

    def _image(self, body: dict[str, Any]) -> str:
        """What the hypervisor calls the image that a machine boots from; "" for Google's own."""
        source = str((body["disks"][0].get("initializeParams") or {}).get("sourceImage", ""))
        if source.startswith(OWN) and (lacking := self.faults.denied("compute.images.useReadOnly")):
            raise no(403, "forbidden", f"Required '{lacking}' permission for 'projects/sandbox-project/{source}'")
        return self.images.to_boot(source, boot_disk_gib(body))

    def _made(
        self, body: dict[str, Any], zone: str, operation: Operation, place: int = 0, image: str = ""
    ) -> None:  # fmt: skip
        kind = TYPES[str(body["machineType"]).rpartition("/")[2]]
        region, name = zone.rpartition("-")[0], str(body["name"])
        card, count = cards_of(body, kind)
        spot = (body.get("scheduling") or {}).get("provisioningModel") == "SPOT"
        price = self._prices.usd(region, kind.name, spot=spot)
        extra = self._prices.usd(region, card, spot=spot) if body.get("guestAccelerators") else 0.0
        machine_id = number(f"{zone}/{name}/{operation.name}")
        labels = {} if self.call_faults.has(FaultKind.UNTAGGED) else dict(body.get("labels") or {})
        self._ids[zone, name] = machine_id
        self._bodies[machine_id] = {**body, "labels": labels}
        operation.machine_id = machine_id
        self.ledger.add(
            NewMachine(
                id=machine_id,
                token=name,
                region=region,
                zone=zone,
                instance_type=kind.name,
                gpus=count,
                gpu_name=ACCELERATORS[card].gpu_name if card else "",
                usd_per_hour=(price or _FALLBACK_USD_PER_HOUR) + count * (extra or 0.0),
                user_data=metadata_of(body).get("startup-script", ""),
                spot=spot,
                tags=labels,
                metadata=metadata_of(body),
                keeps_off=True,
                image=image,
            ),
            self.call_faults,
            place,
        )

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._body(request, self._known(request)))

    async def _serial_port(self, request: web.Request) -> web.Response:
        """The output of port 1 from `start` on; a negative one counts from the end. Google keeps 1 MiB.

        There is none of a machine that is off.
        """
        machine = self._known(request)
        if machine.powered_off:
            raise no(400, "resourceNotReady", f"The resource '{_path(request, machine)}' is not ready")
        whole = self.ledger.console(machine).encode()
        start = int(request.query.get("start", "0"))
        begin = max(len(whole) - _CONSOLE_MAX_B, len(whole) + start if start < 0 else start, 0)
        path = f"{BASE}/{_path(request, machine)}/serialPort"
        return web.json_response(
            {
                "kind": "compute#serialPortOutput",
                "contents": whole[begin:].decode(errors="replace"),
                "start": str(min(begin, len(whole))),
                "next": str(len(whole)),
                "selfLink": path,
            }
        )

    async def _delete(self, request: web.Request) -> web.Response:
        machine = self._known(request)
        if machine.life is Life.ENDING:
            raise no(400, "resourceNotReady", f"The resource '{_path(request, machine)}' is not ready")
        self.ledger.ask_end(machine.id)
        operation = self._operations.begin("delete", machine.zone, machine.token)
        operation.machine_id = machine.id
        return web.json_response(self._told(request, operation, fresh=True))

    async def _list(self, request: web.Request) -> web.Response:
        wanted = _LABEL_FILTER.fullmatch(request.query.get("filter", ""))
        if request.query.get("filter") and wanted is None:
            raise no(400, "invalid", "Invalid value for field 'filter'.")
        found = [
            machine
            for machine in self.ledger.listed()
            if machine.life is not Life.ENDED and (wanted is None or machine.tags.get(wanted[1]) == wanted[2])
        ]
        page, following = self._page(request, found)
        scopes: dict[str, list[dict[str, Any]]] = {zone: [] for zone in ZONES}
        for machine in page:
            scopes[machine.zone].append(self._body(request, machine))
        return self._aggregated(request, "instance", "instances", scopes, following)

    async def _disks(self, request: web.Request) -> web.Response:
        """The boot disk of each machine, and those that no machine has."""
        of_machines = [
            Thing("volume", f"d{m.id}", m.token, m.zone, m.created_at, m.tags, f"zones/{m.zone}/instances/{m.token}")
            for m in self.ledger.listed()
            if m.life is not Life.ENDED
        ]
        return self._things(request, "disk", "disks", [*of_machines, *self.things.of("volume")], "zone")

    async def _addresses(self, request: web.Request) -> web.Response:
        return self._things(request, "address", "addresses", self.things.of("address"), "region")

    async def _snapshots(self, request: web.Request) -> web.Response:
        page, following = self._page(request, self.things.of("snapshot"))
        body: dict[str, Any] = {"kind": "compute#snapshotList", "items": [self._thing(one, "") for one in page]}
        return web.json_response({**body, "nextPageToken": following} if following else body)

    def _things(
        self, request: web.Request, kind: str, name: str, found: list[Thing], scope: str
    ) -> web.Response:  # fmt: skip
        page, following = self._page(request, found)
        scopes: dict[str, list[dict[str, Any]]] = {}
        for one in page:
            scopes.setdefault(one.region, []).append(self._thing(one, scope))
        items = {f"{scope}s/{place}": {name: rows} for place, rows in scopes.items()}
        body: dict[str, Any] = {"kind": f"compute#{kind}AggregatedList", "items": items}
        return web.json_response({**body, "nextPageToken": following} if following else body)

    def _thing(self, one: Thing, scope: str) -> dict[str, Any]:
        base = "https://www.googleapis.com/compute/v1/projects/sandbox-project"
        body: dict[str, Any] = {
            "id": str(int(uuid.uuid5(uuid.NAMESPACE_OID, one.id)) % 10**18), "name": one.name, "labels": dict(one.tags),
            "creationTimestamp": one.created_at.isoformat(),
        }  # fmt: skip
        if scope:
            body[scope] = f"{base}/{scope}s/{one.region}"
        if one.attached_to:
            body["users"] = [f"{base}/{one.attached_to}"]
        return body

    def _page(self, request: web.Request, found: list[P]) -> tuple[list[P], str]:
        """One page, and the token of the next; "" at the end."""
        token = request.query.get("pageToken", "")
        limit = self.page_of(min(int(request.query.get("maxResults", _PAGE_MAX)), _PAGE_MAX), token)
        start = next((at for at, one in enumerate(found) if one.id == token), -1) + 1
        page = found[start : start + limit]
        return page, page[-1].id if start + limit < len(found) else ""

    def _alive(self, machine_id: str) -> RentedMachine | None:
        machine = self.ledger.find(machine_id)
        return None if machine is None or machine.life is Life.ENDED else machine

    def _known(self, request: web.Request) -> RentedMachine:
        zone, name = request.match_info["zone"], request.match_info["name"]
        machine_id = self._ids.get((zone, name))
        machine = None if machine_id is None else self._alive(machine_id)
        if machine is None:
            path = f"projects/{request.match_info['project']}/zones/{zone}/instances/{name}"
            raise no(404, "notFound", f"The resource '{path}' was not found")
        return machine

    def _body(self, request: web.Request, machine: RentedMachine) -> dict[str, Any]:
        return instance_body(request.match_info["project"], machine, self._bodies[machine.id], self.call_faults.content)

    async def _skus(self, request: web.Request) -> web.Response:
        if self.call_faults.before is not None:
            raise not_switched_on()
        return self.billing.page(request)

    # --- images

    async def _image_list(self, request: web.Request) -> web.Response:
        project, text = request.match_info["project"], request.query.get("filter", "")
        wanted = _LABEL_FILTER.fullmatch(text)
        if text and wanted is None:
            raise no(400, "invalid", "Invalid value for field 'filter'.")
        found = matching(self.images.shown(), (wanted[1], wanted[2]) if wanted else None)
        page, following = self._page(request, found)
        return web.json_response(
            {
                "kind": "compute#imageList",
                "id": f"projects/{project}/global/images",
                "items": [self.images.body(project, one, self.call_faults.content) for one in page],
                **({"nextPageToken": following} if following else {}),
                "selfLink": f"{BASE}/projects/{project}/global/images",
            }
        )

    async def _image_get(self, request: web.Request) -> web.Response:
        image = self.images.known(request.match_info["name"])
        return web.json_response(self.images.body(request.match_info["project"], image, self.call_faults.content))

    async def _image_insert(self, request: web.Request) -> web.Response:
        before = len(self.images.images)
        image = self.images.insert(
            await request.json(), request.query.get("requestId", ""), self._disk, self.ledger,
            fails=FaultKind.IMAGE_FAILS in self.call_faults.content,
        )  # fmt: skip
        return self._image_operation(request, image, "insert", fresh=len(self.images.images) > before)

    async def _image_delete(self, request: web.Request) -> web.Response:
        return self._image_operation(request, self.images.delete(request.match_info["name"]), "delete", fresh=True)

    def _image_operation(self, request: web.Request, image: StoredImage, kind: str, *, fresh: bool) -> web.Response:
        return web.json_response(
            self.images.operation_body(request.match_info["project"], image, kind, fresh=fresh)
        )  # fmt: skip

    def _disk(self, zone: str, name: str) -> tuple[RentedMachine, str, int]:
        """The machine of a boot disk, its architecture, and the disk's GiB."""
        machine = self._alive(self._ids.get((zone, name), ""))
        if machine is None:
            raise no(404, "notFound", f"The resource 'projects/sandbox/zones/{zone}/disks/{name}' was not found")
        return machine, TYPES[machine.instance_type].arch, boot_disk_gib(self._bodies[machine.id])

    # --- types

    async def _machine_types(self, request: web.Request) -> web.Response:
        wanted = _text_filter(request.query.get("filter", ""))
        scopes = {
            zone: [
                kind.body(zone, number)
                for number, kind in enumerate(TYPES.values())
                if zone in kind.zones and wanted(kind.name)
            ]
            for zone in ZONES
        }
        return self._aggregated(request, "machineType", "machineTypes", scopes)

    async def _accelerator_types(self, request: web.Request) -> web.Response:
        scopes = {zone: [one.body(zone, n) for n, one in enumerate(ACCELERATORS.values())] for zone in ZONES}
        return self._aggregated(request, "acceleratorType", "acceleratorTypes", scopes)

    def _aggregated(
        self, request: web.Request, kind: str, key: str, scopes: dict[str, list[dict[str, Any]]], following: str = ""
    ) -> web.Response:
        nothing = {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "There are no results for scope on this page."}}
        items = {f"zones/{zone}": {key: rows} if rows else nothing for zone, rows in scopes.items()}
        return web.json_response(
            {
                "kind": f"compute#{kind}AggregatedList",
                "id": f"projects/{request.match_info['project']}/aggregated/{key}",
                "items": items,
                **({"nextPageToken": following} if following else {}),
                "selfLink": f"{BASE}/projects/{request.match_info['project']}/aggregated/{key}",
            }
        )

    # --- operations

    async def _operation(self, request: web.Request) -> web.Response:
        found = self._operations.find(request.match_info["name"])
        if found is None:
            raise no(404, "notFound", "The operation was not found")
        return web.json_response(self._told(request, found))

    async def _operation_list(self, request: web.Request) -> web.Response:
        wanted = _text_filter(request.query.get("filter", ""))
        rows = [self._told(request, one) for one in self._operations.of_zone(request.match_info["zone"])]
        items = [row for row in rows if wanted(str(row["targetLink"]))]
        zone = f"{BASE}/projects/{request.match_info['project']}/zones/{request.match_info['zone']}"
        return web.json_response({"kind": "compute#operationList", "id": "1", "selfLink": zone, "items": items})

    def _told(self, request: web.Request, one: Operation, *, fresh: bool = False) -> dict[str, Any]:
        return self._operations.body(request.match_info["project"], one, fresh=fresh)


def _path(request: web.Request, machine: RentedMachine) -> str:
    return f"projects/{request.match_info['project']}/zones/{machine.zone}/instances/{machine.token}"


def _text_filter(text: str) -> Callable[[str], bool]:
    if not text:
        return lambda _: True
    found = _TEXT_FILTER.fullmatch(text)
    if found is None:
        raise no(400, "invalid", "Invalid value for field 'filter'.")
    pattern, negative = re.compile(found[3]), found[2] == "ne"
    return lambda value: (pattern.fullmatch(value) is None) is negative


def _is_signed(token: str) -> bool:
    """Whether a token has the form of a service account's JWT. The signature is not checked, as any key is accepted."""
    _, _, rest = token.partition(".")
    claims, dot, signature = rest.partition(".")
    try:
        said = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    except ValueError:
        return False
    return bool(dot and signature) and str(said.get("iss", "")).endswith(".gserviceaccount.com")
