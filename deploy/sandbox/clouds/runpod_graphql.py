"""The part of RunPod's GraphQL API for spot pods: its schema, queries and error answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aiohttp import web
from graphql import GraphQLError, build_schema, graphql_sync

from deploy.sandbox.clouds.runpod_types import GpuType
from meshd.contract.standin import ErrorResponse

if TYPE_CHECKING:
    from deploy.sandbox.clouds.runpod_api import RunpodCloud

PATH = "/graphql"
DEPLOY = "podRentInterruptable"
#: The field in a query that identifies its operation.
_OPERATIONS = {DEPLOY: "launch", "lowestPrice": "offers"}

SCHEMA = build_schema("""
    enum CloudTypeEnum { ALL SECURE COMMUNITY }
    input EnvironmentVariableInput { key: String!, value: String! }
    input GpuLowestPriceInput {
      gpuCount: Int!, secureCloud: Boolean, dataCenterId: String, countryCode: String, minMemoryInGb: Int,
      minVcpuCount: Int
    }
    input PodRentInterruptableInput {
      bidPerGpu: Float!, cloudType: CloudTypeEnum, gpuCount: Int, gpuTypeId: String, name: String, imageName: String,
      dockerArgs: String, containerDiskInGb: Int, volumeInGb: Int, volumeMountPath: String, networkVolumeId: String,
      ports: String, env: [EnvironmentVariableInput], dataCenterId: String, countryCode: String,
      allowedCudaVersions: [String], containerRegistryAuthId: String, startSsh: Boolean, supportPublicIp: Boolean,
      minVcpuCount: Int, minMemoryInGb: Int, templateId: String
    }
    type LowestPrice { minimumBidPrice: Float, uninterruptablePrice: Float, stockStatus: String }
    type GpuType {
      id: String, displayName: String, memoryInGb: Int, lowestPrice(input: GpuLowestPriceInput): LowestPrice
    }
    type PodMachineInfo { podHostId: String, dataCenterId: String }
    type Pod {
      id: String!, name: String, imageName: String, desiredStatus: String, costPerHr: Float, machineId: String,
      machine: PodMachineInfo
    }
    type Query { gpuTypes: [GpuType] }
    type Mutation { podRentInterruptable(input: PodRentInterruptableInput!): Pod }
""")


class PlainErrorResponse(ErrorResponse):
    """An error answer of the gateway, in plain text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, None)
        self.text = text

    def response(self) -> web.Response:
        """The answer to send."""
        return web.Response(text=self.text, status=self.status, headers=self.headers)


def graphql_error(words: str) -> ErrorResponse:
    """A GraphQL error, with status 200 and no data."""
    error = {"message": words, "path": [DEPLOY], "extensions": {"code": "RUNPOD"}}
    return ErrorResponse(200, {"errors": [error], "data": {DEPLOY: None}})


def invalid_query(words: str) -> ErrorResponse:
    """The answer to a query that does not match the schema: status 400, without data."""
    return ErrorResponse(400, {"errors": [{"message": words, "extensions": {"code": "GRAPHQL_VALIDATION_FAILED"}}]})


def operation_of(query: str) -> str:
    """The contract's name of a call."""
    return next((name for part, name in _OPERATIONS.items() if part in query), "other")


def run(query: str, root: object) -> Mapping[str, Any]:
    """Answer a query like the API.

    Args:
        query: GraphQL.
        root: has the root fields as methods.

    Raises:
        ErrorResponse: one of the methods refuses.
    """
    result = graphql_sync(SCHEMA, query, root)
    for error in result.errors or ():
        if isinstance(error.original_error, ErrorResponse):
            raise error.original_error
        if error.original_error is not None and not isinstance(error.original_error, GraphQLError):
            raise error.original_error
    return dict(result.formatted)


def rest_body(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The body of the REST API's create call for the same pod."""
    body: dict[str, Any] = {
        "name": asked.get("name"),
        "image": asked.get("imageName"),
        "args": asked.get("dockerArgs", ""),
        "disk": asked.get("containerDiskInGb", 20),
        "env": {row["key"]: row["value"] for row in asked.get("env", ())},
        "ports": [port for port in str(asked.get("ports", "")).split(",") if port],
        "cloud": asked.get("cloudType", "SECURE"),
        "gpu": {"id": asked.get("gpuTypeId"), "count": asked.get("gpuCount", 1)},
    }
    if asked.get("dataCenterId"):
        body["dataCenterIds"] = [asked["dataCenterId"]]
    if asked.get("networkVolumeId"):
        volume = {"volumeId": asked["networkVolumeId"], "path": asked.get("volumeMountPath", "/workspace")}
        body["mounts"] = {"network": [volume]}
    return body


class Root:
    """The root fields of the GraphQL API."""

    def __init__(self, cloud: RunpodCloud) -> None:
        self._cloud = cloud

    def gpuTypes(self, info: object) -> list[Mapping[str, Any]]:  # noqa: N802
        """All GPU types, each with the field `lowestPrice`."""

        def row(gpu: GpuType) -> Mapping[str, Any]:
            def price(info: object, input: Mapping[str, Any]) -> dict[str, Any]:  # noqa: A002
                return self._cloud.lowest_price(gpu, input)

            return {"id": gpu.id, "displayName": gpu.name, "memoryInGb": gpu.memory_gb, "lowestPrice": price}

        return [row(gpu) for gpu in self._cloud.gpus.values()]

    def podRentInterruptable(self, info: object, input: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002, N802
        """Rent a spot pod."""
        machine = self._cloud.rent_spot(input)
        return {
            "id": machine.id,
            "name": machine.token,
            "imageName": input.get("imageName"),
            "desiredStatus": "RUNNING",
            "costPerHr": machine.usd_per_hour,
            "machineId": f"h{machine.id}",
            "machine": {"podHostId": f"{machine.id}-64410", "dataCenterId": machine.region},
        }
