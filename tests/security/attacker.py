"""A head with its real node API on loopback, and callers who may be anybody: agents, and attackers beside them.

Journal, tokens, devices, munge rotation, command queues and the API are the daemon's own. Only the programs munge and
unmunge, Slurm, and the tailnet's word on who has an address are the test's. Each machine has a loopback address that
stands for its tailnet address. All processes on a machine share it, as they do in life.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
from pydantic import SecretBytes

from meshd.api.node_api import NodeApi
from meshd.daemon.active_rotation import ActiveRotations
from meshd.daemon.agents import AgentQueues
from meshd.daemon.hosts.wiring import NamedDevices
from meshd.daemon.munge_key.head import HeadMunge
from meshd.daemon.munge_key.wiring import build
from meshd.daemon.nodes.tokens import MachineTokens
from meshd.errors import TailnetError
from meshd.model.hardware import GpuFact
from meshd.model.host import Host
from meshd.model.ids import PoolName, SlotName
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Fresh, TailnetPeer, TailnetView
from meshd.munge.client import MungeClient
from meshd.munge.key import MungeKeyStore
from meshd.runtime.run import Result
from meshd.slurm.client import SlurmClient
from meshd.store.auth_rotations import AuthRotations
from meshd.store.hosts import Hosts
from meshd.store.munge_rotations import MungeRotations
from tests.host_room import Deleted, host_parts, static_provider
from tests.live import live_settings
from tests.node_room import node_parts
from tests.sources import Given, fresh
from tests.unit.daemon.small import Small
from tests.unit.worlds import FACTS, NOW, machine, tailnet

KEY = bytes(range(256)) * 4
"""The cluster's munge key."""

HEAD_ADDRESS = "127.0.0.1"
NODE_FACTS = replace(FACTS, gpus=(GpuFact(0, "NVIDIA H100 80GB HBM3", "GPU-0", 81559, "/dev/nvidia0"),))


def facts_wire(**changes: Any) -> dict[str, Any]:
    """A node's facts as its agent sends them."""
    return {**json.loads(json.dumps(asdict(NODE_FACTS))), **changes}


def fingerprint(key: bytes) -> str:
    """As heads and agents tell it."""
    return hashlib.sha256(key).hexdigest()[:16]


def credential(key: bytes) -> str:
    """What munge makes with a key here."""
    return f"MUNGE:{hashlib.sha256(key).hexdigest()}:"


@dataclass(frozen=True)
class Answer:
    """What the API said."""

    status: int
    body: Any

    @property
    def code(self) -> str:
        """The stable word for a refusal; "" when it has none."""
        return str(self.body.get("code", ""))


@dataclass
class Caller:
    """A process on a machine, root's or a user's: the head sees the machine's address. `token` goes with each call."""

    session: aiohttp.ClientSession
    base: str
    token: str = ""

    async def call(
        self, method: str, path: str, body: Any = None, token: str | None = None, data: Any = None
    ) -> Answer:
        """One call; `token` instead of the caller's own; `data` is a body that is no JSON, or comes in pieces."""
        word = self.token if token is None else token
        headers = {"Authorization": f"Bearer {word}"} if word else {}
        async with self.session.request(method, self.base + path, json=body, data=data, headers=headers) as answer:
            got = await answer.read()
            return Answer(answer.status, json.loads(got) if answer.content_type == "application/json" else got)

    async def join(self, token: str | None = None, **body: Any) -> Answer:
        """POST /v1/join."""
        return await self.call("POST", "/v1/join", {"facts": facts_wire(), **body}, token)

    async def prove(self, token: str | None = None) -> Answer:
        """POST /v1/munge with the cluster's key."""
        return await self.call("POST", "/v1/munge", {"credential": credential(KEY)}, token)

    async def poll(self, token: str | None = None, **report: Any) -> Answer:
        """POST /v1/poll; it is not held."""
        report = {"phase": "serving", "munge_ok": True, "roster_version": 0, "hold_s": 0, **report}
        return await self.call("POST", "/v1/poll", report, token)

    async def enrol(self, token: str | None = None, **body: Any) -> Answer:
        """POST /v1/hosts/enrol."""
        given = {"facts": facts_wire(gpus=[]), "tailnet": "own", **body}
        return await self.call("POST", "/v1/hosts/enrol", given, token)

    async def poll_host(self, token: str | None = None, **report: Any) -> Answer:
        """POST /v1/hosts/poll; it is not held."""
        return await self.call("POST", "/v1/hosts/poll", {"state": "free", "hold_s": 0, **report}, token)


class Head(Small):
    """One life of a head. Build it inside `head_at`, which serves its API.

    Attributes:
        peers: who has a loopback address, as the tailnet says.
        tokens: the real ones: an attacker may be handed any that it could have.
        munged_key: the key of the head's munged.
    """

    def __init__(self, directory: Path, *machines: Machine) -> None:
        super().__init__(directory, *machines)
        self.directory = directory
        self.peers: dict[str, TailnetPeer] = {}
        self.munged_key = KEY
        self.live = live_settings()
        self.queues = AgentQueues()
        self.tokens = MachineTokens.at(directory / "machines.key")
        munge, slurm_client = MungeClient(self._run), SlurmClient(self._run, 10.0)
        rotations = MungeRotations(self.journal)
        self.munge_key = build(
            self.journal, rotations, ActiveRotations(AuthRotations(self.journal), rotations), MungeKeyStore(directory),
            HeadMunge(directory, munge, slurm_client, self.clock, directory / "answer.json"), self.queues,
            fresh(lambda: self.slurm.seen), self.clock, poll_hold_s=25.0,
            credential=lambda: SecretBytes(self.munged_key),
        ).controller  # fmt: skip
        self.hosts, self.tailnet_api = Hosts(self.journal), Deleted()
        self.owned = host_parts(
            self.machine_store, self.hosts, live=self.live, tokens=self.tokens, devices=self.tailnet_api
        )
        self.static = static_provider(self.hosts, self.machine_store)
        whois = NamedDevices(self, self.hosts)
        parts = node_parts(
            self.machine_store, live=self.live, tokens=self.tokens, agents=self.queues, whois=whois, munge=munge,
            munge_key=self.munge_key, node_steps=self.node_steps,
            tailnet=Given(lambda: Fresh(self._tailnet(), self.clock.now())),
        )  # fmt: skip
        self.devices, self.refusals, self.node_tokens = parts.devices, parts.refusals, parts.node_tokens
        self.token_service, self.service = parts.token_service, parts.service
        self.api = NodeApi(self.service, poll_hold_s=25.0, clock=self.clock, hosts=self.owned.service)
        self.base = ""
        self._sessions: list[aiohttp.ClientSession] = []
        self._stopped = False

    async def whois(self, address: str) -> TailnetPeer:
        """Who has a loopback address. Raises TailnetError for an address that nobody has."""
        if address not in self.peers:
            raise TailnetError(f"nobody has {address}")
        return self.peers[address]

    # -- machines -------------------------------------------------------------------------------------------------

    def put(self, phase: Phase, index: int = 1, **changes: Any) -> Machine:
        """A machine in the journal, `created_at` now, and its device on the tailnet at `address_of(index)`."""
        given: dict[str, Any] = {"created_at": self.clock.now(), **changes}
        one = machine(phase, index=index, **given)
        if one.facts is not None:
            one = replace(one, facts=changes.get("facts", NODE_FACTS), tailnet_id=f"n-{index}")
        self.journal.put(one, "phase", "given", NOW)
        self.peers[address_of(index)] = TailnetPeer(f"n-{index}", one.name, f"100.64.0.{index + 1}", online=True)
        return one

    def join_token(self, one: Machine) -> str:
        """What any user of the machine reads at a metadata service."""
        return self.tokens.join_token(one.name).get_secret_value()

    def node_token(self, one: Machine) -> str:
        """What root of the machine has once it has joined."""
        return self.tokens.node_token(one.name).get_secret_value()

    # -- owned machines -------------------------------------------------------------------------------------------

    def invited(self, name: str = "tower", index: int = 1, **changes: Any) -> str:
        """An invitation in the journal, and the device of the machine that is meant. Returns its token."""
        now = self.clock.now()
        host = Host(name, PoolName("desk"), SlotName("desk-1"), now, now + timedelta(hours=1))
        self.hosts.put(replace(host, **changes), "invited", now)
        self.peers[address_of(index)] = TailnetPeer(f"n-{index}", f"pc-{index}", f"100.64.0.{index + 1}", online=True)
        return self.tokens.invitation_token(name, 1).get_secret_value()

    def host_token(self, name: str = "tower") -> str:
        """What the host speaks with once it is enrolled."""
        return self.tokens.host_token(name, 1).get_secret_value()

    def host(self, name: str = "tower") -> Host:
        """Its record."""
        found = self.hosts.find(name)
        assert found is not None
        return found

    async def enrolled(self, name: str = "tower", index: int = 1, **changes: Any) -> Caller:
        """A host that has used its own token; and its agent."""
        agent = self.at(index)
        answer = await agent.enrol(self.invited(name, index, **changes))
        assert answer.status == 200, answer.body
        agent.token = answer.body["host_token"]
        assert (await agent.poll_host()).status == 200
        return agent

    def at(self, index: int = 1, token: str = "") -> Caller:
        """A process on a machine."""
        connector = aiohttp.TCPConnector(local_addr=(address_of(index), 0))
        session = aiohttp.ClientSession(connector=connector)
        self._sessions.append(session)
        return Caller(session, self.base, token)

    async def ready(self, index: int = 1) -> tuple[Machine, Caller]:
        """A machine that joined, proved munge and is READY; and its agent, with the node token.

        The way there is the real one: join token, answer, proof, poll.
        """
        one = self.put(Phase.JOINING, index)
        agent = self.at(index)
        joined = await agent.join(self.join_token(one))
        assert joined.status == 200, joined.body
        agent.token = joined.body["node_token"]
        assert (await agent.prove()).status == 200
        assert (await agent.poll()).status == 200
        self.machine_store.move(one.name, Phase.TESTING, "slurmd was started", slurmd_started=True, line_published=True)
        self.machine_store.move(one.name, Phase.READY, "all well")
        return self.get(one.name), agent

    def later(self, seconds: float) -> None:
        """Time passes."""
        self.clock.t_s += seconds

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve the node API."""
        port = await self.api.start(HEAD_ADDRESS, 0)
        self.base = f"http://{HEAD_ADDRESS}:{port}"

    async def stop(self) -> None:
        """End as a killed meshd does: the journal alone knows what was."""
        if self._stopped:
            return
        self._stopped = True
        for session in self._sessions:
            await session.close()
        await self.api.stop()
        await self.executor.aclose(1)
        self.journal.close()

    def _tailnet(self) -> TailnetView:
        return tailnet(*self.peers.values())

    async def _run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Result:
        """The programs munge and unmunge."""
        if argv[0] == "munge":
            return Result(tuple(argv), 0, credential(self.munged_key), "")
        same = (stdin or b"").decode() == credential(self.munged_key)
        return Result(tuple(argv), 0 if same else 14, "", "")


def address_of(index: int) -> str:
    """The loopback address that stands for a machine's tailnet address."""
    return f"127.0.9.{index}"


@asynccontextmanager
async def head_at(directory: Path) -> AsyncIterator[Head]:
    """A head that serves; with the directory of an earlier one it is meshd after a restart."""
    directory.mkdir(exist_ok=True)
    head = Head(directory)
    await head.start()
    try:
        yield head
    finally:
        await head.stop()
