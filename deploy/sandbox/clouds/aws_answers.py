"""Requests and answers of EC2's query protocol: operations, permissions, error answers and faults."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from xml.sax.saxutils import escape

from deploy.sandbox.clouds.aws_moto import Reply
from deploy.sandbox.clouds.aws_spot import REFUSALS as SPOT_REFUSALS
from deploy.sandbox.clouds.ledger import RentedMachine
from meshd.contract.faults import CUT_FAULTS, CloudFault, FaultKind
from meshd.contract.standin import GATEWAY_PAGE

CONSOLE_MAX_B = 64 * 1024
_SCOPE = re.compile(r"Credential=[^/]+/\d+/([a-z0-9-]+)/([a-z0-9-]+)/")
INSTANCE_ID = re.compile(rb"<instanceId>(i-[0-9a-f]+)</instanceId>")
INSTANCE = b"<item><architecture>"
"""What each instance of a reservation begins with in moto's answers."""
_ADDRESS = re.compile(rb"<(ipAddress|dnsName)>[^<]*</\1>|<association>.*?</association>", re.DOTALL)
_LAUNCH_TIME = re.compile(rb"<launchTime>[^<]*</launchTime>")
OPERATIONS = {
    "RunInstances": "launch",
    "TerminateInstances": "terminate",
    "DescribeInstanceTypes": "offers",
    "DescribeInstanceTypeOfferings": "offers",
    "GetCallerIdentity": "check",
    "GetConsoleOutput": "console",
    "CreateImage": "create_image",
    "DescribeSnapshots": "images",
    "DeregisterImage": "delete_image",
    "DeleteSnapshot": "delete_image",
    "DescribeVolumes": "billed",
    "DescribeAddresses": "billed",
    "DescribeRegions": "billed",
}
REFUSALS = {
    FaultKind.NO_CAPACITY: (
        500,
        "InsufficientInstanceCapacity",
        "We currently do not have sufficient capacity in the zone.",
    ),
    FaultKind.QUOTA: (
        400,
        "VcpuLimitExceeded",
        "You have requested more vCPU capacity than your current limit allows.",
    ),
    FaultKind.THROTTLED: (503, "RequestLimitExceeded", "Request limit exceeded."),
    FaultKind.AUTH: (401, "AuthFailure", "AWS was not able to validate the provided access credentials"),
    FaultKind.EXPIRED: (400, "RequestExpired", "Request has expired."),
    FaultKind.INVALID: (400, "InvalidParameterValue", "Value for a parameter is invalid."),
}
_PHRASES = {
    400: "BAD REQUEST",
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    500: "INTERNAL SERVER ERROR",
    503: "SERVICE UNAVAILABLE",
}


def operation_of(action: str, form: Mapping[str, str]) -> str:
    """The contract's name of a call."""
    if action == "DescribeInstances":
        return "get" if instance_ids(form) else "list"
    if action == "DescribeImages" and form.get("Owner.1") == "self":
        return "images"
    return OPERATIONS.get(action, "other")


def permissions_of(service: str, action: str, form: Mapping[str, str]) -> list[str]:
    """The IAM actions that a call needs."""
    needed = [f"{service}:{action}"]
    if action in ("RunInstances", "CreateImage"):
        needed += ["ec2:CreateTags"] * any(key.startswith("TagSpecification.") for key in form)
        needed += ["iam:PassRole"] * any(key.startswith("IamInstanceProfile.") for key in form)
    return needed


def denial(permission: str, action: str) -> Reply:
    """EC2's answer for a missing permission. It names the action for simple calls and encodes it for others."""
    words = "You are not authorized to perform this operation."
    user = "arn:aws:iam::123456789012:user/meshd"
    if action in ("RunInstances", "TerminateInstances"):
        context = {"action": permission, "resource": "arn:aws:ec2:us-east-1:123456789012:instance/*"}
        text = json.dumps({"allowed": False, "explicitDeny": False, "context": context})
        words += f" Encoded authorization failure message: {base64.urlsafe_b64encode(text.encode()).decode()}"
    else:
        words += (
            f" User: {user} is not authorized to perform: {permission} because no identity-based policy allows the"
            f" {permission} action"
        )
    return error_reply(403, "AccessDenied" if permission.startswith("sts:") else "UnauthorizedOperation", words)


def decoded_message(form: Mapping[str, str]) -> Reply:
    """sts:DecodeAuthorizationMessage."""
    text = base64.urlsafe_b64decode(form["EncodedMessage"]).decode()
    body = (
        '<DecodeAuthorizationMessageResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
        f"<DecodeAuthorizationMessageResult><DecodedMessage>{escape(text)}</DecodedMessage>"
        "</DecodeAuthorizationMessageResult></DecodeAuthorizationMessageResponse>"
    )
    return Reply("200 OK", [("Content-Type", "text/xml")], body.encode())


def instance_ids(form: Mapping[str, str]) -> list[str]:
    """The instance ids in a request."""
    return [value for key, value in form.items() if re.fullmatch(r"InstanceId\.\d+", key)]


def instance_tags(form: Mapping[str, str]) -> dict[str, str]:
    """The tags that RunInstances puts on the instance."""
    return tags_in(form, "instance")


def tags_in(form: Mapping[str, str], resource: str) -> dict[str, str]:
    """The tags that a create call puts on a kind of resource."""
    stems = [
        key.removesuffix("ResourceType")
        for key, value in form.items()
        if re.fullmatch(r"TagSpecification\.\d+\.ResourceType", key) and value == resource
    ]
    return {
        form[key]: form.get(key.removesuffix(".Key") + ".Value", "")
        for stem in stems
        for key in form
        if key.startswith(f"{stem}Tag.") and key.endswith(".Key")
    }


def fingerprint(form: Mapping[str, str]) -> str:
    """A hash of a request, which is the same for the same parameters."""
    return hashlib.sha256(repr(sorted(form.items())).encode()).hexdigest()


def scope_of(environ: Mapping[str, Any]) -> tuple[str, str]:
    """Region and service of a request, from its signature."""
    found = _SCOPE.search(str(environ.get("HTTP_AUTHORIZATION", "")))
    return (found[1], found[2]) if found else ("us-east-1", "ec2")


def shown_part(reservation: bytes, shown: set[str]) -> bytes:
    """A reservation in an answer with those of its instances that are to be shown; b"" when there are none."""
    head, *instances = reservation.split(INSTANCE)
    last, mark, tail = (instances.pop() if instances else b"").rpartition(b"</instancesSet>")
    kept = [one for one in (*instances, last) if (found := INSTANCE_ID.search(one)) and found[1].decode() in shown]
    return head + b"".join(INSTANCE + one for one in kept) + mark + tail if kept else b""


def console_reply(instance_id: str, text: str, at: datetime) -> Reply:
    """GetConsoleOutput: the last 64 KiB, in base64; no output yet is an empty element."""
    output = base64.b64encode(text.encode()[-CONSOLE_MAX_B:]).decode()
    body = (
        '<GetConsoleOutputResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
        "<requestId>00000000-0000-0000-0000-000000000000</requestId>"
        f"<instanceId>{instance_id}</instanceId><timestamp>{at:%Y-%m-%dT%H:%M:%S.000Z}</timestamp>"
        f"<output>{output}</output></GetConsoleOutputResponse>"
    )
    return Reply("200 OK", [("Content-Type", "text/xml")], body.encode())


def without_address(body: bytes, machine: RentedMachine) -> bytes:
    """Remove the public address, which RunInstances does not have yet, and set the ledger's time."""
    at = machine.created_at.strftime("%Y-%m-%dT%H:%M:%S.000Z").encode()
    return _LAUNCH_TIME.sub(b"<launchTime>" + at + b"</launchTime>", _ADDRESS.sub(b"", body))


def error_reply(status: int, code: str, message: str, headers: Iterable[tuple[str, str]] = ()) -> Reply:
    """EC2's error answer."""
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error>'
        f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
        "</Error></Errors><RequestID>00000000-0000-0000-0000-000000000000</RequestID></Response>"
    )
    return Reply(f"{status} {_PHRASES.get(status, 'ERROR')}", [("Content-Type", "text/xml"), *headers], body.encode())


def refusals_of(*, spot: bool) -> Mapping[FaultKind, tuple[int, str, str]]:
    """EC2's status, code and message by kind of fault."""
    return {**REFUSALS, **SPOT_REFUSALS} if spot else REFUSALS


def faulty_reply(fault: CloudFault, *, spot: bool = False) -> Reply:
    """The answer under a fault. Raises ConnectionResetError when it cuts the connection."""
    if fault.kind in CUT_FAULTS:
        raise ConnectionResetError("a fault cuts the connection")
    if fault.kind is FaultKind.HTML:
        return Reply("502 BAD GATEWAY", [("Content-Type", "text/html")], GATEWAY_PAGE.encode())
    if fault.kind is FaultKind.HTML_AFTER:
        return Reply("200 OK", [("Content-Type", "text/html")], GATEWAY_PAGE.encode())
    refusals = refusals_of(spot=spot)
    if fault.kind in refusals:
        status, code, message = refusals[fault.kind]
        headers = [("Retry-After", f"{fault.seconds:g}")] if fault.kind is FaultKind.THROTTLED and fault.seconds else []
        return error_reply(status, code, message, headers)
    code = "Unavailable" if fault.status == 503 else "InternalError"
    return error_reply(fault.status, code, "An internal error has occurred")
