"""Calls of EC2, the Price List API and STS through AWS's SDK, in threads, with errors of the contract."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import boto3
import botocore.session
from botocore import exceptions, parsers
from botocore.config import Config

from meshd.errors import AuthFailed, Transient, Uncertain
from meshd.runtime.gc_tuning import gc_paused
from providers._answers import ErrorAnswer, unclear
from providers._http import USER_AGENT
from providers._reads import until_end
from providers._settings import secret_of
from providers._threads import Workers
from providers.aws.errors import AWS, decoded, encoded_in, to_error, without_code
from providers.aws.prices import price_filter
from providers.aws.sdk import cap_answers, models, refusal_of, sdk_error
from providers.aws.settings import AwsSettings

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_ec2.type_defs import PaginatorConfigTypeDef

T = TypeVar("T")
R = TypeVar("R")
Row = Mapping[str, Any]

PRICING_REGION = "us-east-1"
"""One of the three regions that have the Price List Query API. Each has the prices of all regions."""
NOT_NITRO = frozenset({"UnsupportedOperation", "InvalidParameterCombination"})
"""The refusal of `Latest` for an instance that is not on Nitro."""
_PAGES: PaginatorConfigTypeDef = {"PageSize": 1000}
"""Without it EC2 answers everything at once, of which each megabyte takes ten to parse."""
REGIONS_MAX = 100
_REGION = re.compile("[a-z0-9-]{1,40}")
"""A region's name becomes a part of the name of the host that is asked."""
PRICES_TIMEOUT_S = 120.0
"""For all pages of one region, about ten."""


class Ec2:
    """EC2 in all regions. Clients are created on first use, in a thread, because that takes a while.

    RunInstances and TerminateInstances use a client without retries: the SDK would take a capacity refusal, which is a
    5xx, for a server error and repeat the call.

    Raises:
        ConfigError: the file with the secret key cannot be read.
    """

    def __init__(self, settings: AwsSettings) -> None:
        self._settings = settings
        self._secret = secret_of(settings.secret_access_key, settings.secret_access_key_file, "aws_secret_access_key")
        self._workers = Workers(AWS, settings.threads)
        self._clients: dict[tuple[str, str, int], Any] = {}
        self._lock = threading.Lock()
        self._session: boto3.Session | None = None

    async def run_instances(self, region: str, parameters: Mapping[str, Any]) -> list[Row]:
        """RunInstances for `MaxCount` machines; returns their rows."""

        def call() -> list[Row]:
            answer = self._ec2(region, attempts=1).run_instances(**cast("Any", parameters))
            made = _part(answer, "Instances", "launch", changes=True)
            if len(made) != parameters["MaxCount"]:
                raise Uncertain(f"{len(made)} instances in the answer", provider=AWS, operation="launch")
            return made

        return await self._do(call, "launch", changes=True, timeout_s=self._settings.launch_timeout_s)

    async def instances(
        self, region: str, filters: Sequence[Any], read: Callable[[Row], R], operation: str = "list"
    ) -> list[R]:
        """DescribeInstances by filter, all pages.

        A page of 1,000 instances is 3 MB of XML. To save memory, `read` converts one instance at a time, and each page
        is dropped before the next.
        """

        def call() -> list[R]:
            pages = (
                self._ec2(region)
                .get_paginator("describe_instances")
                .paginate(Filters=list(filters), PaginationConfig={"PageSize": 1000})
            )
            with gc_paused():
                return [
                    read(instance)
                    for page in until_end(pages, provider=AWS, operation=operation)
                    for reservation in _part(page, "Reservations", operation)
                    for instance in reservation.get("Instances", [])
                ]

        return await self._do(call, operation)

    async def instance(self, region: str, instance_id: str) -> Row | None:
        """DescribeInstances by id; None when the answer is empty."""

        def call() -> Row | None:
            answer = self._ec2(region).describe_instances(InstanceIds=[instance_id])
            return next((i for r in _part(answer, "Reservations", "get") for i in r.get("Instances", [])), None)

        return await self._do(call, "get")

    async def terminate(self, region: str, instance_id: str) -> None:
        """TerminateInstances for one id."""

        def call() -> None:
            answer = self._ec2(region, attempts=1).terminate_instances(InstanceIds=[instance_id])
            _part(answer, "TerminatingInstances", "terminate", changes=True)

        await self._do(call, "terminate", changes=True)

    async def console(self, region: str, instance_id: str) -> str:
        """GetConsoleOutput: the last 64 KiB of the serial console, "" when there is none.

        Only instances on Nitro have the text of this moment (`Latest`); of others EC2 has what it stored last.
        """

        def call() -> str:
            client = self._ec2(region, attempts=1)
            try:
                answer = client.get_console_output(InstanceId=instance_id, Latest=True)
            except exceptions.ClientError as error:
                if error.response.get("Error", {}).get("Code") not in NOT_NITRO:
                    raise
                answer = client.get_console_output(InstanceId=instance_id)
            if answer.get("InstanceId") != instance_id:
                text = "the answer is not what EC2's API promises"
                raise Transient(text, provider=AWS, operation="console")
            return str(answer.get("Output") or "")

        return await self._do(call, "console")

    async def instance_types(self, region: str, patterns: Sequence[str], operation: str = "offers") -> list[Row]:
        """DescribeInstanceTypes, all pages."""

        def call() -> list[Row]:
            filters = [{"Name": "instance-type", "Values": list(patterns)}]
            pages = self._ec2(region).get_paginator("describe_instance_types").paginate(Filters=cast("Any", filters))
            return [
                row
                for page in until_end(pages, provider=AWS, operation=operation)
                for row in _part(page, "InstanceTypes", operation)
            ]

        return await self._do(call, operation)

    async def zones(self, region: str, types: Sequence[str], operation: str = "offers") -> list[Row]:
        """DescribeInstanceTypeOfferings by zone, all pages."""

        def call() -> list[Row]:
            pages = (
                self._ec2(region)
                .get_paginator("describe_instance_type_offerings")
                .paginate(
                    LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": list(types)[:200]}]
                )
            )
            return [
                row
                for page in until_end(pages, provider=AWS, operation=operation)
                for row in _part(page, "InstanceTypeOfferings", operation)
            ]

        return await self._do(call, operation)

    async def spot_prices(self, region: str, types: Sequence[str], since: Any, operation: str = "offers") -> list[Row]:
        """DescribeSpotPriceHistory from `since` on, all pages."""

        def call() -> list[Row]:
            pages = (
                self._ec2(region)
                .get_paginator("describe_spot_price_history")
                .paginate(InstanceTypes=cast("Any", list(types)), ProductDescriptions=["Linux/UNIX"], StartTime=since)
            )
            return [
                row
                for page in until_end(pages, provider=AWS, operation=operation)
                for row in _part(page, "SpotPriceHistory", operation)
            ]

        return await self._do(call, operation)

    async def images(
        self, region: str, *, image_id: str = "", owner: str = "", name: str = "", operation: str = "launch"
    ) -> list[Row]:
        """DescribeImages by id, or by owner and name pattern when there is no id."""

        def call() -> list[Row]:
            client = self._ec2(region)
            if image_id:
                return _part(client.describe_images(ImageIds=[image_id]), "Images", operation)
            answer = client.describe_images(Owners=[owner], Filters=[{"Name": "name", "Values": [name]}])
            return _part(answer, "Images", operation)

        return await self._do(call, operation)

    async def create_image(self, region: str, parameters: Mapping[str, Any]) -> str:
        """CreateImage; returns the AMI's id."""

        def call() -> str:
            answer = self._ec2(region, attempts=1).create_image(**cast("Any", parameters))
            image = answer.get("ImageId")
            if not image:
                raise Uncertain("no id in the answer", provider=AWS, operation="create_image")
            return str(image)

        return await self._do(call, "create_image", changes=True)

    async def own_images(self, region: str, filters: Sequence[Any], operation: str = "images") -> list[Row]:
        """DescribeImages of the account's own images, all pages: also those that are not ready or failed."""

        def call() -> list[Row]:
            pages = (
                self._ec2(region)
                .get_paginator("describe_images")
                .paginate(Owners=["self"], Filters=list(filters), PaginationConfig=_PAGES)
            )
            return [
                row for page in until_end(pages, provider=AWS, operation=operation)
                for row in _part(page, "Images", operation)
            ]  # fmt: skip

        return await self._do(call, operation)

    async def own_snapshots(self, region: str, filters: Sequence[Any], operation: str = "images") -> list[Row]:
        """DescribeSnapshots of the account's own snapshots, all pages."""

        def call() -> list[Row]:
            pages = (
                self._ec2(region)
                .get_paginator("describe_snapshots")
                .paginate(OwnerIds=["self"], Filters=list(filters), PaginationConfig=_PAGES)
            )
            return [
                row for page in until_end(pages, provider=AWS, operation=operation)
                for row in _part(page, "Snapshots", operation)
            ]  # fmt: skip

        return await self._do(call, operation)

    async def volumes(self, region: str, operation: str = "billed") -> list[Row]:
        """DescribeVolumes, all pages."""

        def call() -> list[Row]:
            pages = self._ec2(region).get_paginator("describe_volumes").paginate(PaginationConfig={"PageSize": 500})
            return [
                row for page in until_end(pages, provider=AWS, operation=operation)
                for row in _part(page, "Volumes", operation)
            ]  # fmt: skip

        return await self._do(call, operation)

    async def regions(self, operation: str = "billed") -> list[str]:
        """DescribeRegions: the names of the regions that the account has enabled. It has no pages."""

        def call() -> list[str]:
            answer = self._ec2(self._settings.regions[0]).describe_regions()
            names = [str(row.get("RegionName")) for row in _part(answer, "Regions", operation)]
            if not names or len(names) > REGIONS_MAX or not all(_REGION.fullmatch(name) for name in names):
                raise Transient("the answer is not what EC2's API promises", provider=AWS, operation=operation)
            return names

        return await self._do(call, operation)

    async def addresses(self, region: str, operation: str = "billed") -> list[Row]:
        """DescribeAddresses. It has no pages."""

        def call() -> list[Row]:
            return _part(self._ec2(region).describe_addresses(), "Addresses", operation)

        return await self._do(call, operation)

    async def deregister_image(self, region: str, image_id: str) -> None:
        """DeregisterImage. Its snapshots stay."""
        await self._do(
            lambda: self._ec2(region, attempts=1).deregister_image(ImageId=image_id), "delete_image", changes=True
        )

    async def delete_snapshot(self, region: str, snapshot_id: str) -> None:
        """DeleteSnapshot. EC2 refuses it for the snapshot of an image."""
        await self._do(
            lambda: self._ec2(region, attempts=1).delete_snapshot(SnapshotId=snapshot_id), "delete_image", changes=True
        )

    async def prices(self, region: str, rates: Callable[[Iterable[str]], list[R]]) -> list[R]:
        """GetProducts for shared Linux machines on demand in one region, all pages.

        A page is half a megabyte. To save memory, `rates` converts one page at a time.

        Args:
            region: the region of the prices; the API itself is in us-east-1.
            rates: converts the products of one page, each a JSON text.

        Raises:
            AuthFailed: the credentials lack pricing:GetProducts.
        """

        def call() -> list[R]:
            client = self._client("pricing", PRICING_REGION, self._settings.read_attempts)
            filters = [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in price_filter(region)]
            pages = client.get_paginator("get_products").paginate(
                ServiceCode="AmazonEC2", Filters=filters, PaginationConfig={"PageSize": 100}
            )
            try:
                return [
                    rate
                    for page in until_end(pages, provider=AWS, operation="prices")
                    for rate in rates(_part(page, "PriceList", "prices"))
                ]
            except ValueError as error:
                text = "a product in the answer is not JSON"
                raise Transient(text, provider=AWS, operation="prices") from error

        try:
            return await self._do(call, "prices", timeout_s=PRICES_TIMEOUT_S)
        except AuthFailed as error:
            text = f"{error.text} (prices need the permission pricing:GetProducts)"
            raise AuthFailed(text, provider=AWS, operation="prices", vendor_text=error.vendor_text) from error

    async def identity(self, region: str) -> str:
        """sts:GetCallerIdentity: whose the credentials are. It needs no permission."""

        def call() -> str:
            who = self._client("sts", region, self._settings.read_attempts).get_caller_identity()
            return f"account {who.get('Account', '?')}, {who.get('Arn', '?')}"

        return await self._do(call, "check")

    async def dry_run(self, region: str, parameters: Mapping[str, Any]) -> None:
        """RunInstances with DryRun: makes nothing, and raises what the real call would raise."""
        await self._do(lambda: self._dry("run_instances", region, parameters), "check")

    async def dry_terminate(self, region: str, instance_id: str) -> None:
        """TerminateInstances with DryRun: ends nothing."""
        await self._do(lambda: self._dry("terminate_instances", region, {"InstanceIds": [instance_id]}), "check")

    async def dry_console(self, region: str, instance_id: str) -> None:
        """GetConsoleOutput with DryRun."""
        await self._do(lambda: self._dry("get_console_output", region, {"InstanceId": instance_id}), "check")

    async def dry_create_image(self, region: str, instance_id: str) -> None:
        """CreateImage with DryRun."""
        parameters = {"InstanceId": instance_id, "Name": "meshd-doctor"}
        await self._do(lambda: self._dry("create_image", region, parameters), "check")

    async def dry_deregister_image(self, region: str, image_id: str) -> None:
        """DeregisterImage with DryRun: deletes nothing."""
        await self._do(lambda: self._dry("deregister_image", region, {"ImageId": image_id}), "check")

    async def dry_delete_snapshot(self, region: str, snapshot_id: str) -> None:
        """DeleteSnapshot with DryRun: deletes nothing."""
        await self._do(lambda: self._dry("delete_snapshot", region, {"SnapshotId": snapshot_id}), "check")

    def _dry(self, call: str, region: str, parameters: Mapping[str, Any]) -> None:
        try:
            getattr(self._ec2(region, attempts=1), call)(**parameters, DryRun=True)
        except exceptions.ClientError as error:
            if error.response.get("Error", {}).get("Code") != "DryRunOperation":
                raise

    def _decoded(self, refusal: ErrorAnswer) -> ErrorAnswer:
        """The refusal with its encoded part decoded, where the credentials allow that."""
        code = encoded_in(refusal.message)
        if not code:
            return refusal
        words = ""
        with suppress(exceptions.ClientError, exceptions.BotoCoreError):
            sts = self._client("sts", self._settings.regions[0], 1)
            words = decoded(sts.decode_authorization_message(EncodedMessage=code).get("DecodedMessage", ""))
        return replace(refusal, message=f"{without_code(refusal.message)} {words}".strip())

    def forget(self, region: str) -> None:
        """Close the clients of a region that is rarely asked, to free memory. A call that still runs is not cut off."""
        with self._lock:
            for key in [key for key in self._clients if key[1] == region]:
                self._clients.pop(key).close()

    async def aclose(self) -> None:
        """Close the connections and accept no more calls."""
        await self._workers.aclose()
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    async def _do(
        self, call: Callable[[], T], operation: str, *, changes: bool = False, timeout_s: float | None = None
    ) -> T:
        def guarded() -> T:
            try:
                return call()
            except exceptions.ClientError as error:
                refusal = refusal_of(error)
                refusal = self._decoded(refusal) if operation == "check" else refusal
                raise to_error(refusal, operation=operation, changes=changes) from None
            except (exceptions.BotoCoreError, parsers.ResponseParserError) as error:
                raise sdk_error(error, operation, changes) from None

        deadline_s = timeout_s or self._settings.call_timeout_s
        return await self._workers.call(guarded, operation=operation, changes=changes, timeout_s=deadline_s)

    def _ec2(self, region: str, attempts: int | None = None) -> EC2Client:
        return cast("EC2Client", self._client("ec2", region, attempts or self._settings.read_attempts))

    def _client(self, service: str, region: str, attempts: int) -> Any:
        key = (service, region, attempts)
        with self._lock:  # sessions are not thread-safe, clients are
            if key not in self._clients:
                self._session = self._session or self._new_session()
                self._clients[key] = self._session.client(
                    cast("Any", service),
                    region_name=region,
                    endpoint_url=self._settings.endpoint_url or None,
                    config=Config(
                        connect_timeout=min(10.0, self._settings.call_timeout_s),
                        read_timeout=max(self._settings.call_timeout_s, self._settings.launch_timeout_s),
                        retries={"total_max_attempts": attempts, "mode": "standard"},
                        max_pool_connections=self._settings.threads,
                        user_agent_extra=USER_AGENT,
                    ),
                )
                cap_answers(self._clients[key])
            return self._clients[key]

    def _new_session(self) -> boto3.Session:
        settings = self._settings
        base = botocore.session.get_session()
        base.register_component("data_loader", models())
        if not settings.access_key_id or self._secret is None:
            return boto3.Session(profile_name=settings.profile or None, botocore_session=base)
        token = settings.session_token
        return boto3.Session(
            botocore_session=base,
            aws_access_key_id=settings.access_key_id,
            aws_secret_access_key=self._secret.get_secret_value(),
            aws_session_token=token.get_secret_value() if token else None,
        )


def _part(answer: Mapping[str, Any], key: str, operation: str, *, changes: bool = False) -> list[Any]:
    """The list that an answer must contain, even if empty.

    The SDK accepts any well-formed XML, such as a proxy's page with status 200, and finds nothing in it. That must not
    be read as "there are no machines".

    Raises:
        Uncertain: the list is missing, and the call changes something.
        Transient: the list is missing, and the call only reads.
    """
    rows = answer.get(key)
    if isinstance(rows, list):
        return rows
    text = "the answer is not what EC2's API promises"
    raise unclear(text, changes=changes, provider=AWS, operation=operation)
