"""A cluster of the sandbox as the scenarios see it: from meshctl's, Slurm's, the cloud's and the tailnet's side."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import aiohttp

from deploy.sandbox import proc
from deploy.sandbox.clouds.host import BootDefaults
from deploy.sandbox.clouds.ledger import Life, RentedMachine
from deploy.sandbox.cluster import Cluster
from deploy.sandbox.headmachine import Head
from deploy.sandbox.vendors import credentials
from meshd.contract.faults import CloudFault

T = TypeVar("T")

USER = "alice"
SOCKET = "/run/meshd/meshd.sock"
ANSWER_S = 20.0
FIT_S = 10.0
"""For the jobs of a scenario to end before its machines are taken for unfit."""
POLL_S = 0.2
PATIENCE_S = 120.0
"""Many times what anything here takes on a quiet machine: how long it takes is a figure, not what a test proves."""
SERVICES = ("tailscaled", "munge", "slurmctld", "meshd-slurm.path", "meshd-munge.path", "meshd")
"""What runs on the head, and does so again when a scenario has failed half-way."""

QUICK = {
    "tick_interval_s": 1.0,
    "provider_poll_interval_s": 1.0,
    "provider_timeout_s": 30.0,
    "launch_timeout_s": 30.0,
    "launch_settle_s": 5.0,
    "listing_lag_s": 10.0,
    "leave_timeout_s": 5.0,
    "terminate_again_s": 3.0,
    "breaker_failures": 1,
}
"""The clouds here answer at once, so what waits for a slow one need not wait long."""

WAIT_FOR_WORD = "echo begun >/tmp/job-$SLURM_JOB_ID; until [ -e /tmp/end-$SLURM_JOB_ID ]; do sleep 0.2; done; echo done"
"""A job that runs until its node has that file."""

GPU = re.compile(r"GPU 0: NVIDIA \S+.* \(UUID: (GPU-[-0-9a-f]+)\)")
"""A line of `nvidia-smi -L`, and the UUID in it."""

BY_HAND = "scale_from_queue = false"

AT_ONCE = "reconfigure_spacing_s = 0"
"""A scenario sees each change in Slurm's files, and none of the one before."""

SLURM = """\
SchedulerParameters=batch_sched_delay=0,sched_interval=5,bf_interval=5
CommunicationParameters=keepalivetime=5,keepaliveinterval=10,keepaliveprobes=30
"""
"""A job starts when it is submitted, rather than up to 3 s later; and slurmctld looks again after 5 s, not 60, and
not 30 in its backfill.

srun soon probes an idle connection: a tailscaled that was restarted in user space resets it then.
"""


@dataclass(frozen=True, slots=True)
class Slot:
    """A node as `scontrol show nodes` tells it."""

    name: str
    address: str
    #: Without CLOUD, which every node of a pool has that Slurm's queue drives.
    states: frozenset[str]
    reason: str
    #: Whether Slurm's queue drives its pool.
    cloud: bool
    #: When the slurmd began that slurmctld knows.
    slurmd_began: str


class Unanswered(RuntimeError):
    """A program on the head did not answer as it should, e.g. since its daemon restarts: `until` asks again."""


class Lab:
    """The whole, and what is done to it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._settings = cluster.options.settings()
        self._dirty = False
        #: Whose traces are there; "" where there are none.
        self._scenario = ""

    @property
    def head(self) -> Head:
        """The head machine."""
        return self.cluster.head

    # -- meshctl --------------------------------------------------------------------------------------------------

    async def meshctl(self, *words: str, user: str = "root", timeout_s: float = 60.0) -> proc.Result:
        """Run meshctl; its exit code is the caller's to judge."""
        argv = ["runuser", "-u", user, "--", "meshctl", *words]
        return await self.head.run(*argv, timeout_s=timeout_s, check=False)

    async def ask(self, *words: str, timeout_s: float = 60.0) -> Any:
        """The document that `meshctl WORDS -o json` prints. Raises Unanswered where it ends otherwise than well."""
        result = await self.meshctl(*words, "-o", "json", timeout_s=timeout_s)
        if result.returncode != 0:
            raise Unanswered(f"meshctl {' '.join(words)}: {result.returncode} {_output(result)}")
        return json.loads(result.stdout)

    async def ask_whatever(self, *words: str, timeout_s: float = 60.0) -> Any:
        """The same, however it ends, e.g. `doctor`. Raises Unanswered where it prints no document."""
        result = await self.meshctl(*words, "-o", "json", timeout_s=timeout_s)
        try:
            return json.loads(result.stdout)
        except ValueError:
            raise Unanswered(f"meshctl {' '.join(words)}: {result.returncode} {_output(result)}") from None

    async def checks(self) -> dict[str, Any]:
        """The rows of `meshctl doctor`, by name, also where a check fails: another one, of a Slurm that is slow."""
        return {row["name"]: row for row in (await self.ask_whatever("doctor"))["checks"]}

    async def scale(self, gpus: int, *more: str, timeout_s: float = 180.0, expect: int = 0) -> Any:
        """`meshctl scale --wait`, and what it says in the end."""
        words = ["scale", "--gpus", str(gpus), "--yes", "--wait", "--timeout", f"{timeout_s:.0f}s", *_from_aws(more)]
        result = await self.meshctl(*words, "-o", "json", timeout_s=timeout_s + 30)
        if result.returncode != expect:
            raise AssertionError(f"{' '.join(words)}: {result.returncode}\n{_output(result)}\n{await self.evidence()}")
        return json.loads(result.stdout)

    async def have(self, gpus: int) -> None:
        """What a scenario begins with: so many machines of aws, READY, and no other."""
        await self._target(gpus)

        async def there() -> bool:
            return [row["phase"] for row in (await self.nodes()).values()] == ["ready"] * gpus

        await self.until(there, f"{gpus} machines are ready")

    async def _target(self, gpus: int) -> None:
        target = {"pool": "h100", "gpus": gpus, "reset": True, **({"provider": "aws"} if gpus else {})}

        async def taken() -> str | None:
            return await self._asked("/v1/scale", target)

        await self.until(taken, f"{gpus} GPUs are wanted")

    async def want(self, gpus: int, *more: str) -> Any:
        """`meshctl scale` without waiting."""
        return (await self.ask("scale", "--gpus", str(gpus), "--yes", *_from_aws(more)))["answer"]

    async def get(self, path: str) -> Any:
        """What meshctl reads, over the same socket, without the second that a Python program takes to start.

        None where meshd does not answer, e.g. since it restarts.
        """
        text = await self._asked(f"/v1/{path}")
        return None if text is None else json.loads(text)

    async def _asked(self, path: str, body: Any = None) -> str | None:
        socket = await self.head.socket(SOCKET)
        connector = aiohttp.UnixConnector(path=str(socket))
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(ANSWER_S)) as session,
                session.request("GET" if body is None else "POST", f"http://meshd{path}", json=body) as reply,
            ):
                return await reply.text() if reply.ok else None
        except (aiohttp.ClientError, OSError):
            return None

    async def answer(self, path: str) -> Any:
        """The same, and asked again until meshd answers."""

        async def look() -> Any:
            return await self.get(path)

        return await self.until(look, f"meshd answers {path}")

    async def metrics(self) -> str:
        """What Prometheus reads, over the same socket."""

        async def look() -> str | None:
            return await self._asked("/metrics")

        return await self.until(look, "meshd tells its metrics")

    async def status(self) -> Any:
        """`meshctl status`."""
        return await self.answer("status")

    async def nodes(self) -> dict[str, Any]:
        """As `meshctl nodes` shows them, by machine."""
        return {row["machine"]: row for row in (await self.answer("nodes"))["nodes"]}

    async def by_slot(self) -> dict[str, Any]:
        """`meshctl nodes`, by slot; of those that are in a slot."""
        rows = (await self.nodes()).values()
        return {row["slot"]: row for row in rows if row["phase"] not in {"terminating", "lost"}}

    async def ready(self, gpus: int, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait until so many machines are READY, and no other is there; by slot."""

        async def look() -> dict[str, Any] | None:
            rows = await self.nodes()
            phases = [row["phase"] for row in rows.values()]
            return {row["slot"]: row for row in rows.values()} if phases == ["ready"] * gpus else None

        return await self.until(look, f"{gpus} machines are ready", timeout_s)

    async def problems(self) -> str:
        """All problems of `meshctl status`, one a line, each with its cure."""
        return "\n".join(f"{p['text']} -> {p['cure']}" for p in (await self.status())["problems"])

    async def problem_codes(self, machine: str = "") -> set[str]:
        """The codes of all problems of `meshctl status`, or of those about a machine."""
        problems = (await self.status())["problems"]
        return {p["code"] for p in problems if not machine or p["machine"] == machine}

    async def nothing_left_alone(self) -> bool:
        """Whether every offer may be asked for."""
        offers = (await self.answer("offers?all=true"))["offers"]
        return bool(offers) and not any(offer["blocked_until"] for offer in offers)

    async def last_event(self) -> int:
        """Where `events` goes on from."""
        return int((await self.answer("events?limit=1"))["last_id"])

    async def events(self, after: int) -> list[Any]:
        """What happened since."""
        found: list[Any] = (await self.answer(f"events?after_id={after}&limit=1000"))["events"]
        return found

    async def reconfigures(self) -> int:
        """How often Slurm was reconfigured since meshd's start."""
        return int((await self.status())["slurm"]["reconfigures"])

    # -- Slurm ----------------------------------------------------------------------------------------------------

    async def slots(self) -> dict[str, Slot]:
        """Every node that slurmctld knows."""
        text = (await self._told("scontrol", "show", "nodes", "--oneliner")).text
        return {slot.name: slot for slot in map(_slot, text.splitlines()) if slot.name}

    async def features(self) -> dict[str, set[str]]:
        """What Slurm says of each node: its features."""
        text = (await self._told("sinfo", "-h", "-N", "-o", "%N %b")).text
        return {name: set(words.split(",")) for name, words in (line.split() for line in text.splitlines())}

    async def joined_slots(self) -> set[str]:
        """The slots that have a machine's address in slurmctld."""
        return {name for name, slot in (await self.slots()).items() if slot.address.startswith("100.")}

    async def sbatch(self, script: str, *options: str, user: str = USER) -> str:
        """Submit a job of one GPU as an ordinary user; its id."""
        argv = ["runuser", "-u", user, "--", "sbatch", "--parsable", "--chdir=/tmp", "--gpus=1", *options]
        return (await self.head.run(*argv, stdin=f"#!/bin/sh\n{script}\n".encode())).text

    async def step(
        self, *words: str, stdin: bytes = b"", user: str = USER, timeout_s: float = PATIENCE_S
    ) -> proc.Result:
        """Run a job to its end as an ordinary user; its exit code is the caller's to judge."""
        argv = ["runuser", "-u", user, "--", "srun", "--chdir=/tmp", *words]
        return await self.head.run(*argv, stdin=stdin, timeout_s=timeout_s, check=False)

    async def srun(self, *words: str, stdin: bytes = b"", user: str = USER, timeout_s: float = PATIENCE_S) -> str:
        """Run a job to its end as an ordinary user; what it printed."""
        result = await self.step(*words, stdin=stdin, user=user, timeout_s=timeout_s)
        assert result.returncode == 0, f"srun: {_output(result)}\n{await self.evidence()}"
        return result.text

    async def job(self, job_id: str) -> dict[str, str]:
        """`scontrol show job`, by key."""
        text = (await self._told("scontrol", "show", "job", "--oneliner", job_id)).text
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    async def running(self, job_id: str) -> str:
        """Wait until the job runs; its node."""

        async def look() -> str | None:
            job = await self.job(job_id)
            return job["NodeList"] if job["JobState"] == "RUNNING" else None

        return await self.until(look, f"job {job_id} runs")

    async def start_again(self, job_id: str) -> None:
        """Let a job start that Slurm has queued again.

        Slurm lets it wait until its old credentials have expired; that need not be waited for. But new ones of the
        second in which the old ones were revoked count as revoked too.
        """

        async def may_begin() -> bool:
            job = await self.job(job_id)
            if job["Restarts"] != "0" and job["JobState"] == "PENDING":
                await self.head.run("scontrol", "update", f"JobId={job_id}", "StartTime=now+2")
            return job["Restarts"] != "0" and job["JobState"] in {"PENDING", "RUNNING", "COMPLETED"}

        await self.until(may_begin, f"job {job_id} is queued again")

    async def completed(self, job_id: str) -> dict[str, str]:
        """Wait until the job has ended well; what Slurm says of it then."""

        async def look() -> dict[str, str] | None:
            job = await self.job(job_id)
            return job if job["JobState"] == "COMPLETED" else None

        return await self.until(look, f"job {job_id} ends well")

    async def _told(self, *argv: str) -> proc.Result:
        """What a program on the head tells; asked again while its daemon restarts or changes its key."""

        async def look() -> proc.Result:
            return await self.head.run(*argv, timeout_s=20)

        return await self.until(look, f"{argv[0]} is answered")

    # -- the cloud ------------------------------------------------------------------------------------------------

    def ledger(self, cloud: str = "aws") -> list[RentedMachine]:
        """All machines that the cloud ever made."""
        return self.cluster.clouds.clouds[cloud].ledger.everything()

    def alive(self, cloud: str = "aws") -> list[RentedMachine]:
        """The machines that cost money."""
        return [machine for machine in self.ledger(cloud) if machine.life is not Life.ENDED]

    def all_alive(self) -> list[RentedMachine]:
        """The machines that cost money, in whichever cloud."""
        return [machine for cloud in self.cluster.clouds.clouds for machine in self.alive(cloud)]

    def room(self, **machines: int | None) -> None:
        """How many machines fit into each of these clouds; None for as many as one likes."""
        for cloud, count in machines.items():
            self.cluster.clouds.clouds[cloud].ledger.set_capacity("*", "*", count)

    def fault(self, fault: CloudFault, cloud: str = "aws") -> None:
        """Let something go wrong."""
        self.cluster.clouds.clouds[cloud].faults.inject(fault)

    def boot(self, defaults: BootDefaults) -> None:
        """What the next machines are booted with."""
        self.cluster.clouds.host.boot_defaults = defaults

    def die(self, machine: str, cloud: str = "aws") -> None:
        """The cloud loses a machine."""
        (found,) = [m for m in self.alive(cloud) if m.token == machine]
        self.cluster.clouds.clouds[cloud].ledger.kill(found.id)

    async def replaced(self, dead: str, gpus: int, timeout_s: float = PATIENCE_S) -> float:
        """Wait until a dead machine is gone and another one is READY in its place; the seconds that it took."""
        began = time.monotonic()

        async def done() -> dict[str, Any] | None:
            rows = await self.nodes()
            ready = dead not in rows and [row["phase"] for row in rows.values()] == ["ready"] * gpus
            return {row["slot"]: row["address"] for row in rows.values()} if ready else None

        joined = await self.until(done, f"{dead} is replaced", timeout_s)
        took = time.monotonic() - began
        assert {machine.token for machine in self.all_alive()} == set(await self.nodes())

        async def agreed() -> bool:
            slots = (await self.slots()).values()
            return {s.name: s.address for s in slots if s.address.startswith("100.")} == joined

        await self.until(agreed, "Slurm has the nodes' addresses and no other")

        async def forgotten() -> bool:
            return dead not in await self.devices()

        await self.until(forgotten, "the dead machine's device is gone")
        return took

    async def inside(self, machine: str, *argv: str, stdin: bytes = b"", check: bool = True) -> str:
        """Run a program on a rented machine as its root."""
        (found,) = [m for m in self.all_alive() if m.token == machine]
        return (await self.cluster.world.hypervisor.run(found.name, argv, stdin=stdin, check=check)).text

    async def reboot(self, *machines: str) -> float:
        """Let machines reboot themselves, and wait until they are nodes again; the seconds that it took.

        A boot can be over before slurmctld misses the node, which is IDLE all the time then. So what counts is that
        slurmctld knows another slurmd, and that the agent has spoken since the new boot began.
        """
        rows, before = await self.nodes(), await self.slots()
        boots = {machine: await self._booted_s(machine) for machine in machines}
        began = time.monotonic()
        await asyncio.gather(*(self.inside(machine, "systemctl", "reboot", check=False) for machine in machines))

        async def is_back(machine: str) -> bool:
            booted_s = await self._booted_s(machine)
            slot, row = (await self.slots())[rows[machine]["slot"]], (await self.nodes())[machine]
            age_s, old = row["heartbeat_age_s"], before[slot.name]
            spoke = age_s is not None and age_s < time.clock_gettime(time.CLOCK_BOOTTIME) - (booted_s or 0.0)
            known = slot.states == {"IDLE"} and slot.slurmd_began not in ("None", old.slurmd_began)
            return booted_s not in (None, boots[machine]) and spoke and known

        async def all_back() -> bool:
            return all([await is_back(machine) for machine in machines])

        await self.until(all_back, f"{', '.join(machines)} are back")
        return time.monotonic() - began

    async def _booted_s(self, machine: str) -> float | None:
        """When the first process of a machine began, by this host's CLOCK_BOOTTIME; None between two boots."""
        try:
            ticks = await self.inside(machine, "cut", "-d ", "-f22", "/proc/1/stat")
        except (RuntimeError, OSError):
            return None
        return int(ticks) / os.sysconf("SC_CLK_TCK")

    # -- the tailnet ----------------------------------------------------------------------------------------------

    async def devices(self) -> set[str]:
        """Host names of all devices but the head."""
        return {device.hostname for device in await self.cluster.world.tailnet.devices()} - {"head"}

    async def delete_device(self, hostname: str) -> None:
        """As the admin console does."""
        (found,) = [d for d in await self.cluster.world.tailnet.devices() if d.hostname == hostname]
        await self.cluster.world.tailnet.request("DELETE", f"/api/v2/device/{found.node_id}")

    # -- settings and services ------------------------------------------------------------------------------------

    def settings_with(self, **timing: float) -> str:
        """meshd.toml with other deadlines."""
        assert tomllib.loads(self._settings)["timing"].keys() >= QUICK.keys()
        changed = {**self.cluster.options.timing, **timing}
        lines = "\n".join(f"{key} = {value}" for key, value in changed.items())
        return re.sub(r"(?s)\[timing\]\n.*?\n\n", lambda _: f"[timing]\n{lines}\n\n", self._settings, count=1)

    async def write_settings(self, text: str) -> int:
        """Put meshd.toml in place, and have it read; the exit code of `systemctl reload`."""
        self._dirty = True
        await self.head.write("/etc/meshd/meshd.toml", text)
        return (await self.head.run("systemctl", "reload", "meshd", check=False)).returncode

    async def enable(self, *providers: str, **options: Any) -> None:
        """Let meshd rent from these clouds, from now on; it is restarted for that, with 0 GPUs.

        Slurm has exactly the slots of the settings then, all of them free and in the form that the settings ask for.

        Args:
            providers: the clouds.
            options: other fields of ClusterOptions that change.
        """
        await self.reset()
        await self._set(*providers, **options)

    async def _set(self, *providers: str, **options: Any) -> None:
        self.cluster.options = replace(self.cluster.options, providers=providers, **options)
        self._settings, self._dirty = self.cluster.options.settings(), False
        for name, text in credentials(providers).items():
            await self.head.write(f"/etc/meshd/credentials/{name}", text, "0600")
        await self.head.write("/etc/meshd/meshd.toml", self._settings)
        await self.restart_meshd()
        await self.until(self._as_set, "Slurm has the free slots of the settings, and no other")

    async def _as_set(self) -> bool:
        pools = tomllib.loads(self._settings)["pools"]
        by_queue = {
            f"{name}-{index}": pool.get("scale_from_queue", True)
            for name, pool in pools.items()
            for index in range(1, pool["max_nodes"] + 1)
        }
        slots = await self.slots()
        return slots.keys() == by_queue.keys() and all(
            _free(slot) and slot.cloud == by_queue[name] for name, slot in slots.items()
        )

    @asynccontextmanager
    async def enabled(self, *providers: str, **options: Any) -> AsyncIterator[Lab]:
        """The same meanwhile; afterwards everything is as before, the settings also where something else is not."""
        before = self.cluster.options
        try:
            await self.enable(*providers, **options)
            yield self
        finally:
            try:
                await self.reset()
            finally:
                await self._set(*before.providers, **{name: getattr(before, name) for name in options})

    @asynccontextmanager
    async def driven_by_hand(self) -> AsyncIterator[Lab]:
        """Let people alone scale the pool meanwhile; otherwise Slurm's queue drives it."""
        async with self.enabled(*self.cluster.options.providers, pool=BY_HAND):
            yield self

    @asynccontextmanager
    async def also(self, tables: str) -> AsyncIterator[Lab]:
        """Have these tables in meshd.toml meanwhile, beside what is there, also for the scenarios that begin."""
        first, file = self._settings, (await self.head.run("cat", "/etc/meshd/meshd.toml")).stdout.decode()
        self._settings = f"{first}\n{tables}"
        assert await self.write_settings(f"{file}\n{tables}") == 0, await self.evidence()
        try:
            yield self
        finally:
            self._settings = first
            await self.write_settings(file)

    async def timing(self, **timing: float) -> None:
        """Other deadlines, at once."""
        code = await self.write_settings(self.settings_with(**timing))
        assert code == 0, await self.evidence()

    async def restart_meshd(self) -> None:
        """A clean restart, which also reads the credentials anew."""
        await self.head.run("systemctl", "restart", "meshd", timeout_s=60)

    async def kill_meshd(self) -> None:
        """`kill -9`, and started again at once rather than in RestartSec."""
        before = await self.meshd_pid()
        await self.head.run("systemctl", "kill", "-s", "KILL", "meshd")

        async def dead() -> bool:
            return await self.meshd_pid() != before

        await self.until(dead, "systemd has seen meshd's end")  # until then it would take it for started
        await self.head.run("systemctl", "reset-failed", "meshd", check=False)
        await self.head.run("systemctl", "start", "meshd", timeout_s=60)

    async def meshd_pid(self) -> str:
        """Which process meshd is now."""
        return (await self.head.run("systemctl", "show", "-P", "MainPID", "meshd")).text

    # -- time -----------------------------------------------------------------------------------------------------

    async def until(self, look: Callable[[], Awaitable[T | None]], what: str, timeout_s: float = PATIENCE_S) -> T:
        """Look again and again until there is something to see; that.

        A look at a daemon that restarts, or at a file that is not there yet, fails: it has seen nothing yet.

        Raises:
            AssertionError: it did not come in time; with all that is known.
        """
        end, looks = time.monotonic() + timeout_s, 0
        while True:
            looks += 1
            try:
                seen = await look()
                if seen:
                    return seen
                saw = f"saw {seen!r}"
            except (Unanswered, proc.CommandError) as error:
                saw = f"failed: {error}"
            if time.monotonic() > end:
                told = f"not within {timeout_s:g} s, in {looks} looks: {what}; the last one {saw}"
                raise AssertionError(f"{told}\n{await self.evidence()}")
            await asyncio.sleep(POLL_S)

    async def begin(self, scenario: str, *, keep: bool = False) -> None:
        """Begin a scenario, once what the one before has left is cleared away.

        Args:
            scenario: its name.
            keep: it may begin with the machines that are there, if all of them are READY and idle.
        """
        await self.reset(keep=keep)
        self._scenario = scenario

    async def reset(self, *, keep: bool = False) -> None:
        """No jobs, no faults, the first settings, all services, and 0 GPUs: proved from all sides.

        Nothing happens where no scenario was begun since the last time. With `keep` machines stay if all are fit.
        """
        if not self._scenario:
            return
        for cloud in self.cluster.clouds.clouds.values():
            cloud.faults.clear()
            cloud.ledger.release()
        self.room(**dict.fromkeys(self.cluster.clouds.clouds))
        self.boot(BootDefaults())
        await self.head.run("scancel", "-u", USER, check=False)
        if self._dirty:
            await self.write_settings(self._settings)
            self._dirty = False
        await self.head.run("systemctl", "start", *SERVICES, timeout_s=60)
        await self.no_hosts()
        if keep and not self.images() and await self._all_fit():
            return
        await self._target(0)
        await self.nothing_left()
        if self.images():
            # Machines would boot from it, whatever image the next scenario wants.
            assert not (await self.ask("image", "prune", "--all", "--yes"))["failed"]
            assert not self.images()
        self._scenario = ""

    async def _all_fit(self) -> bool:
        """Whether there are machines, all of them READY and idle once their jobs have ended, and nothing else."""

        async def look() -> str | None:
            rows = (await self.nodes()).values()
            if not rows or any(row["phase"] != "ready" or row["unfit"] or row["provider"] != "aws" for row in rows):
                return "unfit"
            names = {row["machine"] for row in rows}
            if {machine.token for machine in self.all_alive()} != names or await self.devices() != names:
                return "strangers"
            if await self.problems():
                return None
            used = {row["slot"] for row in rows}
            slots = (await self.slots()).values()
            well = all(slot.states == {"IDLE"} if slot.name in used else _free(slot) for slot in slots)
            return "fit" if well else None

        try:
            return await self.until(look, "the machines are idle", FIT_S) == "fit"
        except AssertionError:
            return False

    def images(self) -> list[str]:
        """The names of the images that exist at the clouds, whole or in parts."""
        clouds = self.cluster.clouds
        amazon = [one.name for one in clouds.ec2.images.images if one.registered or one.snapshot_there]
        return amazon + [one.name for one in clouds.gce.images.shown()]

    async def no_hosts(self, timeout_s: float = PATIENCE_S) -> None:
        """Remove all owned machines and invitations. Who does not call is forgotten after a minute of silence."""

        async def look() -> bool:
            names = [row["name"] for row in (await self.answer("hosts"))["hosts"]]
            if names:
                await self.meshctl("remove", "--force", "--yes", *names)
            return not names

        await self.until(look, "no host is known", timeout_s)

    async def nothing_left(self) -> None:
        """No machine costs money, no device is left, Slurm has free slots only."""

        async def look() -> bool:
            return (
                not await self.nodes()
                and not self.all_alive()
                and not await self.devices()
                and all(map(_free, (await self.slots()).values()))
            )

        await self.until(look, f"nothing is left of {self._scenario}")

    async def evidence(self) -> str:
        """What to know after a failure."""
        try:
            shown = await self.head.shell(
                "meshctl status; meshctl nodes; sinfo -N -o '%N %T %E'; squeue; meshctl events -n 40;"
                "tail -n 15 /var/log/slurm/slurmctld.log; journalctl --no-pager -n 40 -u meshd",
                check=False,
            )
        except proc.CommandError as error:
            shown = f"no evidence from the head: {error}"
        clouds = self.cluster.clouds.clouds
        machines = [f"{c} {m.token} {m.life} {m.end or ''}" for c in clouds for m in self.ledger(c)[-12:]]
        logs = self.cluster.world.hypervisor.console
        consoles = [f"--- {m.token}\n{logs(m.name)[-1500:]}" for m in self.all_alive()[:2]]
        return "\n".join([shown, *machines, *consoles])


def _from_aws(words: tuple[str, ...]) -> tuple[str, ...]:
    """Lambda is cheaper and slower: it lets one launch pass every few seconds. The options before do not hold."""
    given = {"--provider", "--spread"} & set(words)
    return ("--reset", *words) if given else ("--reset", *words, "--provider", "aws")


def _free(slot: Slot) -> bool:
    """Whether nothing is left on a slot: of a pool that is driven by hand, or by Slurm's queue."""
    if slot.cloud:
        return slot.states == {"IDLE", "POWERED_DOWN"} and not slot.address.startswith("100.")
    return "DOWN" in slot.states and not slot.address.startswith("100.")


def _slot(line: str) -> Slot:
    fields = dict(re.findall(r"(\w+)=(\S*)", line))
    reason = re.search(r"Reason=(.*?)(?: \[\S+@\S+\].*)?(?: (?:Comment|InstanceId)=.*)?$", line)
    states = frozenset(fields.get("State", "").split("+"))
    return Slot(
        name=fields.get("NodeName", ""),
        address=fields.get("NodeAddr", ""),
        states=states - {"CLOUD"},
        reason=reason[1].strip() if reason else "",
        cloud="CLOUD" in states,
        slurmd_began=fields.get("SlurmdStartTime", ""),
    )


def _output(result: proc.Result) -> str:
    return f"{result.text}\n{result.stderr.decode(errors='replace')}"
