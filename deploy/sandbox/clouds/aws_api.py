"""A stand-in for EC2: moto, with the behaviour that meshd depends on.

It adds to moto: idempotent client tokens, states that take time, real addresses, eventual consistency, capacity,
quotas, a spot market, throttling and all faults of the fault engine. Each RunInstances boots a machine.
"""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from deploy.sandbox.clouds.aws_answers import (
    INSTANCE_ID,
    console_reply,
    decoded_message,
    denial,
    error_reply,
    faulty_reply,
    fingerprint,
    instance_ids,
    instance_tags,
    operation_of,
    permissions_of,
    refusals_of,
    scope_of,
    shown_part,
    without_address,
)
from deploy.sandbox.clouds.aws_images import ImageRefused, ImageStore
from deploy.sandbox.clouds.aws_limits import RunLimits
from deploy.sandbox.clouds.aws_moto import MotoEc2, Reply
from deploy.sandbox.clouds.aws_pricing import TARGET, PriceListApi
from deploy.sandbox.clouds.aws_spot import SpotMarket, is_spot
from deploy.sandbox.clouds.aws_things import addresses, regions, volumes
from deploy.sandbox.clouds.ledger import Ledger, Life, NewMachine, RentedMachine
from deploy.sandbox.clouds.things import Things
from meshd.contract.faults import CallFaults, CloudFault, FaultEngine, FaultKind
from meshd.contract.standin import SMALL_PAGE
from meshd.gang_id import machine_at
from meshd.provider_api import GANG_TAG
from providers._prices import shipped

Form = dict[str, str]
StartResponse = Callable[[str, list[tuple[str, str]]], Any]

_ITEM = re.compile(rb"<item><reservationId>.*?</instancesSet></item>", re.DOTALL)
_FALLBACK_USD_PER_HOUR = 1.0
OLD_FAMILIES = frozenset({"g2", "g3", "g3s", "m4", "p2", "p3", "t2"})
"""Not on Nitro."""
_BASE_IMAGE = "ami-0123456789abcdef0"
_IMAGES = ("CreateImage", "DescribeSnapshots", "DeregisterImage", "DeleteSnapshot")
_CATALOGUE = ("DescribeImages", "DescribeInstanceTypes", "DescribeInstanceTypeOfferings")


class Ec2Error(Exception):
    """An error answer of EC2."""

    def __init__(self, status: int, code: str, message: str) -> None:
        self.reply = error_reply(status, code, message)
        super().__init__(code)


class Ec2Cloud:
    """The stand-in as a WSGI application, for a threaded server.

    Args:
        ledger: the machines.
        faults: decides which faults hit a call.
        image_s: how long an image is pending.
    """

    def __init__(self, ledger: Ledger, faults: FaultEngine, image_s: float = 0.0) -> None:
        self.ledger = ledger
        self.faults = faults
        self._backend = MotoEc2()
        self._prices = shipped("providers.aws")
        self.pricing = PriceListApi(self._prices)
        self._spot = SpotMarket(self._on_demand, self._backend.zones_of, ledger.now)
        self._tokens: dict[tuple[str, str], tuple[str, list[str], Reply]] = {}
        self.images = ImageStore(ledger.now, image_s)
        self.things = Things(ledger.now)
        self.run_limits: RunLimits | None = None
        """The account's limits on RunInstances; None for none."""
        self._lock = threading.RLock()
        self._closing = threading.Event()

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request. Raises ConnectionResetError when a fault cuts the connection."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if environ.get("HTTP_X_AMZ_TARGET") == TARGET:
            reply = self.pricing.reply(body, self.faults.take("prices"), self._closing)
            start_response(reply.status, [*reply.headers, ("Content-Length", str(len(reply.body)))])
            return [reply.body]
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
        action = form.get("Action", "")
        call_faults = self.faults.take(operation_of(action, form))
        region, service = scope_of(environ)
        denied = self.faults.denied(*permissions_of(service, action, form))
        if call_faults.before is not None:
            reply = faulty_reply(call_faults.before, spot=is_spot(form))
        elif denied:
            reply = denial(denied, action)
        else:
            try:
                with self._lock:
                    reply = self._answer(action, form, environ, region, service, call_faults)
            except (Ec2Error, ImageRefused) as refused:
                reply = refused.reply
            if call_faults.after is not None:
                reply = self._after(call_faults.after, reply)
        start_response(reply.status, [*reply.headers, ("Content-Length", str(len(reply.body)))])
        return [reply.body]

    def close(self) -> None:
        """Send delayed answers and delete all instances."""
        self._closing.set()
        self._backend.close()

    def _answer(
        self, action: str, form: Form, environ: Mapping[str, Any], region: str, service: str, call_faults: CallFaults
    ) -> Reply:
        if action == "DecodeAuthorizationMessage":
            return decoded_message(form)
        if service != "ec2":
            return self._backend.forward(environ, form, service)
        if form.get("DryRun") == "true":
            return self._dry_run(action, form, region)
        if action == "RunInstances":
            return self._run(form, environ, region, call_faults)
        if action == "DescribeInstances":
            return self._describe(form, environ, call_faults)
        if action == "TerminateInstances":
            return self._terminate(form, environ)
        if action == "GetConsoleOutput":
            return self._console(form)
        if action == "DescribeRegions":
            return regions()
        if action == "DescribeSpotPriceHistory":
            return Reply("200 OK", [("Content-Type", "text/xml")], self._spot.history(form, region))
        return self._catalogue(action, form, environ, region, call_faults)

    def _catalogue(
        self, action: str, form: Form, environ: Mapping[str, Any], region: str, call_faults: CallFaults
    ) -> Reply:
        """What is about images and types."""
        if action in ("DescribeVolumes", "DescribeAddresses"):
            if FaultKind.PAGE_FAILS in call_faults.content and form.get("NextToken"):
                return faulty_reply(CloudFault(FaultKind.ERROR_BEFORE))
            if action == "DescribeAddresses":
                return addresses(region, self.things)
            return volumes(form, region, self.ledger, self.things, call_faults.content)
        if action in _IMAGES or (action == "DescribeImages" and self._ours(form, region)):
            return self._image(action, form, region, call_faults)
        if action == "DescribeImages":
            self._backend.ensure_images(region)
        if action in _CATALOGUE:
            return self._backend.catalogue(environ, form, region)
        return self._backend.forward(environ, form)

    def _ours(self, form: Form, region: str) -> bool:
        """Whether a question is about the account's own images."""
        return form.get("Owner.1") == "self" or self.images.find(region, form.get("ImageId.1", "")) is not None

    def _image(self, action: str, form: Form, region: str, call_faults: CallFaults) -> Reply:
        if FaultKind.PAGE_FAILS in call_faults.content and form.get("NextToken"):
            return faulty_reply(CloudFault(FaultKind.ERROR_BEFORE))
        if action == "CreateImage":
            machine = self._must_know(form.get("InstanceId", ""))
            if machine.life not in (Life.PENDING, Life.RUNNING):
                raise Ec2Error(400, "IncorrectInstanceState", "The instance is terminated.")
            arch = self._backend.arch_of(region, machine.instance_type)
            return self.images.create(
                form, region, self.ledger, machine, arch, fails=FaultKind.IMAGE_FAILS in call_faults.content
            )  # fmt: skip
        if action == "DescribeImages":
            return self.images.describe(form, region, call_faults.content)
        if action == "DescribeSnapshots":
            return self.images.describe_snapshots(form, region, call_faults.content)
        if action == "DeregisterImage":
            return self.images.deregister(form, region)
        return self.images.delete_snapshot(form, region)

    def _after(self, fault: CloudFault, reply: Reply) -> Reply:
        if fault.kind is FaultKind.SLOW:
            self._closing.wait(fault.seconds)
            return reply
        return faulty_reply(fault)

    def _run(self, form: Form, environ: Mapping[str, Any], region: str, call_faults: CallFaults) -> Reply:
        token = form.get("ClientToken", "")
        shape = fingerprint(form)
        known = self._tokens.get((region, token)) if token else None
        if known is not None:
            return self._replay(known, shape)
        kind = form.get("InstanceType", "")
        number = self._check(form, region, kind)
        if self.run_limits is not None and not self.run_limits.take(region, number, self.ledger.now()):
            raise Ec2Error(*refusals_of(spot=is_spot(form))[FaultKind.THROTTLED])
        own = self.images.to_boot(region, form.get("ImageId", ""))
        form = {**form, "ImageId": _BASE_IMAGE} if own else form
        form = {**form, **dict.fromkeys(("MinCount", "MaxCount"), str(_made_instead(number, call_faults)))}
        reply = self._backend.forward(environ, _untagged(form) if call_faults.has(FaultKind.UNTAGGED) else form)
        made = [found[1].decode() for found in INSTANCE_ID.finditer(reply.body)]
        if not made:
            return reply
        machines = [self._made(form, region, kind, one, call_faults, place, own) for place, one in enumerate(made)]
        reply = Reply(reply.status, reply.headers, without_address(reply.body, machines[0]))
        if call_faults.has(FaultKind.PART_REFUSED):
            raise Ec2Error(*refusals_of(spot=is_spot(form))[FaultKind.NO_CAPACITY])
        others = [known[2] for known in self._tokens.values()]
        if token:
            self._tokens[region, token] = (shape, made, reply)
        if others and call_faults.has(FaultKind.OTHERS_SHOWN):
            return others[-1]
        if call_faults.has(FaultKind.SHOWN_TWICE):
            return replace(reply, body=reply.body.replace(made[-1].encode(), made[0].encode()))
        return reply

    def _dry_run(self, action: str, form: Form, region: str) -> Reply:
        """Answer a DryRun: the refusal of the real call, or EC2's DryRunOperation error."""
        kind = form.get("InstanceType", "")
        if action == "RunInstances" and not self._backend.knows_type(region, kind):
            raise Ec2Error(400, "InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
        if action == "TerminateInstances":
            for instance_id in instance_ids(form):
                self._must_know(instance_id)
        if action in ("GetConsoleOutput", "CreateImage"):
            self._must_know(form.get("InstanceId", ""))
        if action in ("DeregisterImage", "DeleteSnapshot"):
            self.images.must_know(form, region)
        return error_reply(412, "DryRunOperation", "Request would have succeeded, but DryRun flag is set.")

    def _replay(self, known: tuple[str, list[str], Reply], shape: str) -> Reply:
        old_shape, made, reply = known
        if shape != old_shape:
            raise Ec2Error(
                400,
                "IdempotentParameterMismatch",
                "Arguments on this idempotent request are inconsistent with arguments",
            )
        alive = [machine for one in made if (machine := self.ledger.find(one)) and machine.life is not Life.ENDED]
        if len(alive) < len(made):
            raise Ec2Error(400, "IdempotentInstanceTerminated", "The instance of this token is terminated.")
        return reply

    def _check(self, form: Form, region: str, kind: str) -> int:
        """How many instances to launch: as many as there is room for in one zone, from MinCount to MaxCount."""
        if not self._backend.knows_type(region, kind):
            raise Ec2Error(400, "InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
        least, most = int(form.get("MinCount", "0")), int(form.get("MaxCount", "0"))
        if not 1 <= least <= most:
            raise Ec2Error(400, "InvalidParameterValue", "MinCount and MaxCount must be 1 or more, and in order.")
        if len(base64.b64decode(form.get("UserData", ""))) > 16384:
            raise Ec2Error(400, "InvalidParameterValue", "User data is limited to 16384 bytes")
        zone = form.get("Placement.AvailabilityZone", "")
        refusal = self._spot.refusal(form, region, zone or self._backend.zones_of(region, kind)[0])
        if is_spot(form) and refusal is not None:
            raise Ec2Error(*refusal)
        room = self.ledger.room(kind, region, zone or region)
        if room is not None and room < least:
            raise Ec2Error(*refusals_of(spot=is_spot(form))[FaultKind.NO_CAPACITY])
        return most if room is None else min(most, room)

    def _on_demand(self, region: str, kind: str) -> float:
        return self._prices.usd(region, kind) or _FALLBACK_USD_PER_HOUR

    def _made(
        self, form: Form, region: str, kind: str, instance_id: str, call_faults: CallFaults, place: int,
        image: str,
    ) -> RentedMachine:  # fmt: skip
        tags = instance_tags(form)
        gpus, gpu_name = self._backend.gpus(region, kind)
        zone = self._backend.zone_of(region, instance_id)
        spot = is_spot(form)
        return self.ledger.add(
            NewMachine(
                id=instance_id,
                token=machine_at(tags.get(GANG_TAG, ""), place) or tags.get("Name", ""),
                region=region,
                zone=zone,
                instance_type=kind,
                gpus=gpus,
                gpu_name=gpu_name,
                usd_per_hour=self._spot.usd_per_hour(region, zone, kind) if spot else self._on_demand(region, kind),
                user_data=base64.b64decode(form.get("UserData", "")).decode("utf-8", "replace"),
                spot=spot,
                tags={} if call_faults.has(FaultKind.UNTAGGED) else tags,
                image=image,
                keeps_off=form.get("InstanceInitiatedShutdownBehavior", "stop") == "stop",
                metadata={
                    "http_tokens": form.get("MetadataOptions.HttpTokens", "optional"),
                    "hop_limit": form.get("MetadataOptions.HttpPutResponseHopLimit", "1"),
                    "launch_index": str(place),
                },
            ),
            call_faults,
            place,
        )

    def _describe(self, form: Form, environ: Mapping[str, Any], call_faults: CallFaults) -> Reply:
        for asked in instance_ids(form):
            self._must_know(asked)
        shown = {m.id for m in self.ledger.listed()}
        for machine in self.ledger.everything():
            self._backend.show(machine, call_faults.content)
        if not instance_ids(form) and call_faults.content & {FaultKind.SMALL_PAGES, FaultKind.PAGE_FAILS}:
            if FaultKind.PAGE_FAILS in call_faults.content and form.get("NextToken"):
                return faulty_reply(CloudFault(FaultKind.ERROR_BEFORE))
            form = {**form, "MaxResults": str(SMALL_PAGE)}
        reply = self._backend.forward(environ, self._without_token_filter(form))
        body = reply.body
        if not instance_ids(form):
            body = _ITEM.sub(lambda item: shown_part(item[0], shown), body)
        if FaultKind.UNKNOWN_FIELDS in call_faults.content:
            body = body.replace(b"</instanceId>", b"</instanceId><noveltySet><item>1</item></noveltySet>")
        return Reply(reply.status, reply.headers, body)

    def _terminate(self, form: Form, environ: Mapping[str, Any]) -> Reply:
        asked = instance_ids(form)
        for instance_id in asked:
            self._must_know(instance_id)
        reply = self._backend.forward(environ, form)
        for instance_id in asked:
            self.ledger.ask_end(instance_id)
        return reply

    def _console(self, form: Form) -> Reply:
        """The instance's console. Only types on Nitro know `Latest`; of the stand-in's types the old ones do not."""
        instance_id = form.get("InstanceId", "")
        machine = self._must_know(instance_id)
        if form.get("Latest") == "true" and machine.instance_type.partition(".")[0] in OLD_FAMILIES:
            words = "This instance type does not support retrieving the latest console logs."
            raise Ec2Error(400, "UnsupportedOperation", words)
        return console_reply(instance_id, self.ledger.console(machine), self.ledger.now())

    def _must_know(self, instance_id: str) -> RentedMachine:
        if not re.fullmatch(r"i-[0-9a-f]{8,17}", instance_id):
            raise Ec2Error(400, "InvalidInstanceID.Malformed", f'Invalid id: "{instance_id}"')
        machine = self.ledger.find(instance_id)
        if machine is None:
            raise Ec2Error(400, "InvalidInstanceID.NotFound", f"The instance ID '{instance_id}' does not exist")
        return machine

    def _without_token_filter(self, form: Form) -> Form:
        """Replace the filter `client-token`, on which moto fails, by instance ids."""
        for key, value in form.items():
            if value != "client-token" or not re.fullmatch(r"Filter\.\d+\.Name", key):
                continue
            stem = key.removesuffix(".Name")
            wanted = {v for k, v in form.items() if k.startswith(f"{stem}.Value.")}
            ids = [one for (_, token), entry in self._tokens.items() if token in wanted for one in entry[1]]
            kept = {k: v for k, v in form.items() if not k.startswith(f"{stem}.")}
            values = {f"{stem}.Value.{n}": i for n, i in enumerate(ids or ["i-00000000000000000"], 1)}
            return {**kept, key: "instance-id", **values}
        return form


def _made_instead(number: int, call_faults: CallFaults) -> int:
    """How many instances a call makes that is to make `number`."""
    if call_faults.has(FaultKind.PART_REFUSED):
        return max(1, number // 2)
    return number - call_faults.has(FaultKind.TOO_FEW) + call_faults.has(FaultKind.TOO_MANY)


def _untagged(form: Form) -> Form:
    return {key: value for key, value in form.items() if not key.startswith("TagSpecification.")}
