"""The stand-ins' metadata services: as EC2 and GCE have them, each machine sees its own."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

import aiohttp
import pytest
from aiohttp import web

from deploy.sandbox.clouds.host import Host
from deploy.sandbox.clouds.ledger import End, Ledger, NewMachine, RentedMachine, Rules
from deploy.sandbox.clouds.metadata import ATTRIBUTES, FLAVOR_HEADER, TOKEN_HEADER, TTL_HEADER, MetadataService
from deploy.sandbox.hypervisor import HollowHypervisor, MachineSpec
from meshd.contract.faults import CallFaults

SCRIPT = "#!/bin/sh\n# join token"


class Loopback(HollowHypervisor):
    """Machines whose addresses are this host's."""

    async def boot(self, spec: MachineSpec) -> str:
        await super().boot(spec)
        return f"127.0.8.{spec.name[-1]}"


@dataclass
class Clouds:
    base: str
    ledgers: dict[str, Ledger]
    host: Host

    async def machine(self, cloud: str, index: int, metadata: dict[str, str]) -> RentedMachine:
        one = self.ledgers[cloud].add(
            NewMachine(f"i-{index}", f"lab-{index}", "r", "ra", "t", 1, "H100", 1.0, SCRIPT, metadata=metadata),
            CallFaults(),
        )
        await self.host.settle()
        return one

    async def ask(self, index: int, method: str, path: str, **headers: str) -> tuple[int, str]:
        """As a process on the machine with this index."""
        connector = aiohttp.TCPConnector(local_addr=(f"127.0.8.{index}", 0))
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, self.base + path, headers=named) as answer,
        ):
            return answer.status, await answer.text()


@pytest.fixture
async def clouds() -> AsyncIterator[Clouds]:
    host = Host(Loopback())
    ledgers = {name: Ledger(name, host, lambda: datetime.now(UTC), Rules()) for name in ("aws", "gce", "lambda")}
    runner = web.AppRunner(MetadataService(ledgers).app(), access_log=None)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listener).start()
    yield Clouds(f"http://127.0.0.1:{listener.getsockname()[1]}", ledgers, host)
    await runner.cleanup()


async def test_ec2s_second_version_wants_a_token_that_everybody_is_given(clouds: Clouds) -> None:
    await clouds.machine("aws", 1, {"http_tokens": "required", "hop_limit": "1"})
    assert (await clouds.ask(1, "GET", "/latest/user-data"))[0] == 401
    assert (await clouds.ask(1, "PUT", "/latest/api/token"))[0] == 400
    status, token = await clouds.ask(1, "PUT", "/latest/api/token", **{TTL_HEADER: "60"})
    assert status == 200
    assert await clouds.ask(1, "GET", "/latest/user-data", **{TOKEN_HEADER: token}) == (200, SCRIPT)
    assert await clouds.ask(1, "GET", "/latest/meta-data/instance-id", **{TOKEN_HEADER: token}) == (200, "i-1")
    assert (await clouds.ask(1, "GET", "/latest/user-data", **{TOKEN_HEADER: "x"}))[0] == 401
    await clouds.machine("aws", 2, {"http_tokens": "required"})
    assert (await clouds.ask(2, "GET", "/latest/user-data", **{TOKEN_HEADER: token}))[0] == 401, "another machine's"


async def test_ec2s_first_version_is_there_where_the_launch_did_not_close_it(clouds: Clouds) -> None:
    await clouds.machine("aws", 1, {"http_tokens": "optional"})
    assert await clouds.ask(1, "GET", "/latest/user-data") == (200, SCRIPT)


async def test_gce_wants_its_header(clouds: Clouds) -> None:
    await clouds.machine("gce", 1, {"startup-script": SCRIPT, "mine": "1"})
    path = f"{ATTRIBUTES}startup-script"
    assert (await clouds.ask(1, "GET", path))[0] == 403
    assert await clouds.ask(1, "GET", path, **{FLAVOR_HEADER: "Google"}) == (200, SCRIPT)
    status, text = await clouds.ask(1, "GET", f"{ATTRIBUTES}?recursive=true", **{FLAVOR_HEADER: "Google"})
    assert (status, "join token" in text) == (200, True)
    assert (await clouds.ask(1, "GET", f"{ATTRIBUTES}other", **{FLAVOR_HEADER: "Google"}))[0] == 404


async def test_a_machine_of_a_cloud_without_the_service_and_a_stranger_see_nothing(clouds: Clouds) -> None:
    await clouds.machine("lambda", 1, {})
    for index in (1, 3):
        assert (await clouds.ask(index, "GET", "/latest/user-data"))[0] == 404
        assert (await clouds.ask(index, "GET", f"{ATTRIBUTES}startup-script", **{FLAVOR_HEADER: "Google"}))[0] == 404


async def test_a_notice_shows_as_the_clouds_show_it_and_then_the_machine_ends(clouds: Clouds) -> None:
    """docs.aws.amazon.com: spot-instance-termination-notices; docs.cloud.google.com: instances/spot."""
    ec2 = await clouds.machine("aws", 1, {"http_tokens": "required"})
    gce = await clouds.machine("gce", 2, {})
    ec2.spot = gce.spot = True
    _, token = await clouds.ask(1, "PUT", "/latest/api/token", **{TTL_HEADER: "60"})
    action, rebalance = "/latest/meta-data/spot/instance-action", "/latest/meta-data/events/recommendations/rebalance"
    preempted, flavor = "/computeMetadata/v1/instance/preempted", {FLAVOR_HEADER: "Google"}
    for path in (action, rebalance):
        assert (await clouds.ask(1, "GET", path, **{TOKEN_HEADER: token}))[0] == 404
        assert (await clouds.ask(1, "GET", path))[0] == 401
    assert await clouds.ask(2, "GET", preempted, **flavor) == (200, "FALSE")
    assert await clouds.ask(2, "GET", "/computeMetadata/v1/instance/maintenance-event", **flavor) == (200, "NONE")
    waits = asyncio.create_task(clouds.ask(2, "GET", f"{preempted}?wait_for_change=true&timeout_sec=30", **flavor))
    short = await clouds.ask(2, "GET", f"{preempted}?wait_for_change=true&timeout_sec=0", **flavor)
    assert short == (200, "FALSE")
    clouds.ledgers["aws"].notice(ec2.id, 120)
    clouds.ledgers["gce"].notice(gce.id, 30)
    assert await waits == (200, "TRUE")
    status, text = await clouds.ask(1, "GET", action, **{TOKEN_HEADER: token})
    assert (status, json.loads(text)["action"]) == (200, "terminate")
    told = datetime.strptime(json.loads(text)["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert 100 < (told - datetime.now(UTC)).total_seconds() <= 120
    clouds.ledgers["aws"].notice(ec2.id, 0)
    assert [one.end for one in clouds.ledgers["aws"].everything()] == [End.PREEMPTED]
    ec2.spot = False
    with pytest.raises(ValueError, match="not a spot machine"):
        clouds.ledgers["aws"].notice(ec2.id, 5)
