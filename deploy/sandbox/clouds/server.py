"""The server of all stand-ins and the admin API.

In a program: `async with CloudServer(hypervisor) as clouds: ...`. From a shell:
`python -m deploy.sandbox.clouds.server --ip 192.0.2.1`, which prints the URLs as JSON and runs until a signal.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from aiohttp import web
from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import make_server

from deploy.sandbox.clouds.admin import Admin, Cloud
from deploy.sandbox.clouds.aws_api import Ec2Cloud
from deploy.sandbox.clouds.gce_api import GceCloud
from deploy.sandbox.clouds.host import Host
from deploy.sandbox.clouds.lambda_api import LambdaCloud, RateLimits
from deploy.sandbox.clouds.ledger import Billing, Ledger, Rules
from deploy.sandbox.clouds.metadata import MetadataService
from deploy.sandbox.clouds.paperspace_api import PaperspaceCloud
from deploy.sandbox.clouds.runpod_api import RunpodCloud
from deploy.sandbox.hypervisor import HollowHypervisor, Hypervisor
from meshd.contract.faults import FaultEngine
from meshd.contract.standin import StandIn

CLOUDS = frozenset({"aws", "gce", "lambda", "paperspace", "runpod"})
BILLING = {
    "aws": Billing(1.0, 60.0),
    "gce": Billing(1.0, 60.0),
    "lambda": Billing(60.0),
    "paperspace": Billing(),
    "runpod": Billing(),
}
"""As the vendors do: EC2 and Compute Engine by the second and a minute at least, Lambda by the minute."""
DEFAULT_LAMBDA_KEY = "sandbox-lambda-key"
DEFAULT_PAPERSPACE_KEY = "sandbox-paperspace-key"
DEFAULT_RUNPOD_KEY = "sandbox-runpod-key"


def utc_now() -> datetime:
    """The real time."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of the stand-ins.

    Attributes:
        ip: the address to listen on.
        ec2_port: 0 for any free port; likewise the other ports.
        boot_s: the shortest time from launch to running.
        end_s: the time from the request to end until the machine has ended.
        keep_s: how long ended machines are still shown.
        image_s: how long an image is pending.
        lambda_api_key: the only valid key of Lambda. EC2 accepts any key.
        lambda_limits: Lambda's spacing of calls and launches.
        paperspace_api_key: the only valid key of Paperspace.
        runpod_api_key: the only valid key of RunPod.
        runpod_per_minute: calls per minute that RunPod accepts; 0: any number.
        seed: of random faults.
        clouds: the clouds that listen.
        watch_s: how often to check whether machines have powered themselves off; 0: only when a call asks.
    """

    ip: str = "127.0.0.1"
    ec2_port: int = 0
    lambda_port: int = 0
    paperspace_port: int = 0
    runpod_port: int = 0
    gce_port: int = 0
    admin_port: int = 0
    boot_s: float = 0.0
    end_s: float = 0.0
    keep_s: float = 3600.0
    image_s: float = 0.0
    lambda_api_key: str = DEFAULT_LAMBDA_KEY
    lambda_limits: tuple[float, float] = (1.0, 12.0)
    paperspace_api_key: str = DEFAULT_PAPERSPACE_KEY
    runpod_api_key: str = DEFAULT_RUNPOD_KEY
    runpod_per_minute: int = 60
    seed: int = 0
    clouds: frozenset[str] = CLOUDS
    watch_s: float = 2.0


class _QuietHandler(MotoRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Do not log requests."""

    def connection_dropped(self, error: BaseException, environ: dict[str, Any] | None = None) -> None:
        """Close the socket after a fault cut the connection; the server would wait for another request."""
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class CloudServer:
    """The stand-ins, as an async context manager.

    Args:
        hypervisor: boots the machines.
        options: where and how.
        now: UTC clock of the machines.
        listen: creates the listening socket for a port, e.g. in another network namespace; None: on `options.ip`.
        listen_metadata: creates the socket of the metadata service; None: there is no such service.
    """

    def __init__(
        self,
        hypervisor: Hypervisor,
        options: ServerOptions | None = None,
        now: Callable[[], datetime] = utc_now,
        listen: Callable[[int], socket.socket] | None = None,
        listen_metadata: Callable[[], socket.socket] | None = None,
    ) -> None:
        self._listen_metadata = listen_metadata
        self.options = options or ServerOptions()
        self.hypervisor = hypervisor
        self.now = now
        self._listen = listen or self._listen_here
        self.ec2_url = ""
        self.lambda_url = ""
        self.paperspace_url = ""
        self.runpod_url = ""
        self.gce_url = ""
        self.admin_url = ""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> CloudServer:
        """Start listening."""
        options = self.options
        self.host = Host(self.hypervisor)
        self.clouds = {
            "aws": self._cloud("aws", ends_itself=True),
            "lambda": self._cloud("lambda", ends_itself=False),
            "paperspace": self._cloud("paperspace", ends_itself=False),
            "runpod": self._cloud("runpod", ends_itself=False, keeps_preempted=True),
            "gce": self._cloud("gce", ends_itself=False),
        }
        aws, lambda_ = self.clouds["aws"], self.clouds["lambda"]
        self.ec2 = Ec2Cloud(aws.ledger, aws.faults, options.image_s)
        limits = RateLimits(*options.lambda_limits)
        self.lambda_cloud = LambdaCloud(lambda_.ledger, lambda_.faults, options.lambda_api_key, limits)
        paperspace = self.clouds["paperspace"]
        self.paperspace = PaperspaceCloud(paperspace.ledger, paperspace.faults, self.host, options.paperspace_api_key)
        runpod = self.clouds["runpod"]
        self.runpod = RunpodCloud(runpod.ledger, runpod.faults, options.runpod_api_key, options.runpod_per_minute)
        self.gce = GceCloud(self.clouds["gce"].ledger, self.clouds["gce"].faults, options.image_s)
        admin = Admin(self.clouds, self.lambda_cloud, self.host)
        admin_app = admin.app()
        self.runpod.add_admin_routes(admin_app)
        self.paperspace.add_admin_routes(admin_app)
        self.admin_url = await self._serve(admin_app, options.admin_port)
        if "aws" in options.clouds:
            self.ec2_url = self._serve_ec2()
        self.lambda_url = await self._serve_cloud("lambda", self.lambda_cloud, options.lambda_port)
        self.paperspace_url = await self._serve_cloud("paperspace", self.paperspace, options.paperspace_port)
        self.runpod_url = await self._serve_cloud("runpod", self.runpod, options.runpod_port)
        self.gce_url = await self._serve_cloud("gce", self.gce, options.gce_port)
        if self._listen_metadata is not None:
            service = MetadataService({name: cloud.ledger for name, cloud in self.clouds.items()})
            await self._serve_at(service.app(), self._listen_metadata())
        if options.watch_s:
            watch = asyncio.create_task(self._watch(), name="cloud watch")
            self._stack.callback(watch.cancel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening and destroy all machines."""
        await self._stack.aclose()
        for cloud in self.clouds.values():
            for machine in cloud.ledger.everything():
                self.host.destroy(machine.name)
        await self.host.settle()

    def urls(self) -> dict[str, str]:
        """The URL of each API."""
        return {
            "ec2": self.ec2_url,
            "lambda": self.lambda_url,
            "paperspace": self.paperspace_url,
            "runpod": self.runpod_url,
            "gce": self.gce_url,
            "admin": self.admin_url,
        }

    def _cloud(self, name: str, *, ends_itself: bool, keeps_preempted: bool = False) -> Cloud:
        options = self.options
        rules = Rules(options.boot_s, options.end_s, options.keep_s, ends_itself, keeps_preempted, BILLING[name])
        return Cloud(Ledger(name, self.host, self.now, rules), FaultEngine(options.seed))

    def _serve_ec2(self) -> str:
        listener = self._listen(self.options.ec2_port)
        listener.setblocking(True)
        ip, port = listener.getsockname()[:2]
        server = make_server(ip, port, self.ec2, threaded=True, request_handler=_QuietHandler, fd=listener.fileno())
        listener.close()  # the server works on a copy
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="ec2", daemon=True)
        thread.start()

        async def stop() -> None:
            self.ec2.close()
            await asyncio.to_thread(server.shutdown)
            server.server_close()
            await asyncio.to_thread(thread.join, 5.0)

        self._stack.push_async_callback(stop)
        return f"http://{self.options.ip}:{port}"

    async def _serve_cloud(self, name: str, cloud: StandIn, port: int) -> str:
        if name not in self.options.clouds:
            return ""
        url = await self._serve(cloud.app(), port)
        self._stack.callback(cloud.close)
        return url

    async def _serve(self, app: web.Application, port: int) -> str:
        return f"http://{self.options.ip}:{await self._serve_at(app, self._listen(port))}"

    async def _serve_at(self, app: web.Application, listener: socket.socket) -> int:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.SockSite(runner, listener).start()
        bound: Any = runner.addresses[0]
        return int(bound[1])

    def _listen_here(self, port: int) -> socket.socket:
        return socket.create_server((self.options.ip, port))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.options.watch_s)
            for cloud in self.clouds.values():
                cloud.ledger.observe()


async def _main(arguments: argparse.Namespace) -> None:
    hypervisor: Hypervisor = HollowHypervisor()
    if arguments.hypervisor != "hollow":
        module, _, factory = arguments.hypervisor.partition(":")
        hypervisor = getattr(importlib.import_module(module), factory)()
    options = ServerOptions(
        ip=arguments.ip,
        ec2_port=arguments.ec2_port,
        lambda_port=arguments.lambda_port,
        paperspace_port=arguments.paperspace_port,
        runpod_port=arguments.runpod_port,
        gce_port=arguments.gce_port,
        admin_port=arguments.admin_port,
        boot_s=arguments.boot_s,
        end_s=arguments.end_s,
        lambda_limits=(0.0, 0.0) if arguments.no_limits else (1.0, 12.0),
        runpod_per_minute=0 if arguments.no_limits else 60,
    )
    done = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, done.set)
    async with CloudServer(hypervisor, options) as server:
        print(json.dumps(server.urls()), flush=True)
        await done.wait()


def main() -> None:
    """Run until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description="Stand-ins for five clouds")
    parser.add_argument("--ip", default="127.0.0.1")
    parser.add_argument("--ec2-port", type=int, default=0)
    parser.add_argument("--lambda-port", type=int, default=0)
    parser.add_argument("--paperspace-port", type=int, default=0)
    parser.add_argument("--runpod-port", type=int, default=0)
    parser.add_argument("--gce-port", type=int, default=0)
    parser.add_argument("--admin-port", type=int, default=0)
    parser.add_argument("--boot-s", type=float, default=5.0)
    parser.add_argument("--end-s", type=float, default=3.0)
    parser.add_argument("--no-limits", action="store_true", help="switch the clouds' rate limits off")
    parser.add_argument("--hypervisor", default="hollow", help="hollow, or module:factory")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
