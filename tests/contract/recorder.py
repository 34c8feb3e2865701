"""A proxy between an adapter and its stand-in. It records all calls, to check them against the vendor's schema."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer
from jsonschema import Draft202012Validator

from tests.contract.rigs import SandboxRig, build

SPECS = Path(__file__).parent / "specs"
PASSED_ON = ("Authorization", "Content-Type", "User-Agent")
PASSED_BACK = ("RateLimit", "Retry-After")


@dataclass(frozen=True)
class Exchange:
    """One request and its answer; bodies are decoded."""

    method: str
    path: str
    sent: Any
    status: int
    answered: Any
    query: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class Recorder:
    """Records the calls that pass through it.

    Attributes:
        instead: answers by path that replace the stand-in's.
        silent: a path that is answered as if it did not exist.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.url = ""
        self.exchanges: list[Exchange] = []
        self.instead: dict[str, Any] = {}
        self.silent = ""

    async def handle(self, incoming: web.Request) -> web.Response:
        if incoming.path == self.silent:
            return web.Response(status=404, text="<html>no such page</html>", content_type="text/html")
        if incoming.path in self.instead:
            return web.json_response(self.instead[incoming.path])
        raw = await incoming.read()
        headers = {name: value for name, value in incoming.headers.items() if name in PASSED_ON}
        url = self.target + incoming.path_qs
        async with (
            aiohttp.ClientSession() as session,
            session.request(incoming.method, url, data=raw or None, headers=headers) as answer,
        ):
            body = await answer.read()
            self.exchanges.append(
                Exchange(
                    incoming.method,
                    incoming.rel_url.raw_path,
                    json.loads(raw) if raw else None,
                    answer.status,
                    json.loads(body) if body else None,
                    dict(incoming.query),
                    answer.content_type if body else "",
                    headers,
                )
            )
            kept = {name: answer.headers[name] for name in PASSED_BACK if name in answer.headers}
            return web.Response(body=body, status=answer.status, headers=kept, content_type=answer.content_type)


@asynccontextmanager
async def recording(name: str) -> AsyncIterator[tuple[SandboxRig, Recorder]]:
    """The rig called `name`, with a recorder in front of its cloud."""
    async with AsyncExitStack() as stack:
        rig = await build(name, stack)
        recorder = Recorder(rig.server.urls()[name])
        app = web.Application(client_max_size=4 * 1024 * 1024)
        app.router.add_route("*", "/{tail:.*}", recorder.handle)
        proxy = TestServer(app)
        await proxy.start_server()
        stack.push_async_callback(proxy.close)
        recorder.url = str(proxy.make_url("/"))
        yield rig, recorder


class OpenApi:
    """A vendor's OpenAPI document.

    Args:
        file: its name in specs/.
    """

    def __init__(self, file: str) -> None:
        self.document: dict[str, Any] = json.loads((SPECS / file).read_text("utf-8"))

    def operation(self, exchange: Exchange) -> dict[str, Any]:
        """The document's description of a request.

        Raises:
            AssertionError: there is no such call.
        """
        for path, methods in self.document["paths"].items():
            pattern = re.sub(r"\{[^}]+\}", "[^/]+", path)
            if re.fullmatch(pattern, exchange.path) and exchange.method.lower() in methods:
                found: dict[str, Any] = methods[exchange.method.lower()]
                return found
        raise AssertionError(f"the vendor has no {exchange.method} {exchange.path}")

    def check(self, schema: Mapping[str, Any], value: Any) -> None:
        """Check that a value fits the schema."""
        Draft202012Validator({**schema, "components": self.document["components"]}).validate(value)

    def resolved(self, node: dict[str, Any]) -> dict[str, Any]:
        """A node of the document, with references resolved."""
        while "$ref" in node:
            target: Any = self.document
            for part in node["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            node = target
        return node
