"""The demonstration's stages, one after the other."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from deploy.sandbox import cache, prepare
from deploy.sandbox.demo import checks, job, report
from deploy.sandbox.demo.checks import DifferenceError
from deploy.sandbox.demo.logs import save
from deploy.sandbox.demo.screen import Screen
from deploy.sandbox.images import HEAD, HEAD_MLFLOW, TORCH
from deploy.sandbox.network import GATEWAY
from deploy.sandbox.proc import CommandError
from deploy.sandbox.processes import PidFolder
from deploy.sandbox.tailnet import TailnetError

if TYPE_CHECKING:
    from deploy.sandbox.cluster import Cluster

PARTS = ("trixie", "trixie-pod", "head", "tailscale", "control")
TORCH_PARTS = (f"trixie{TORCH}", HEAD_MLFLOW)
SCALE_TIMEOUT_S = 600
AGREE_S = 20.0
UNITS = ("meshd", "slurmctld", "munge", "tailscaled")
TIMING = {"listing_lag_s": 10.0}
"""The machines are ended when they are a minute old, and listings here miss none: no need to wait until they would be
proof with a real cloud."""
_ID = re.compile(r"[a-z0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class Options:
    """What to show."""

    sandbox_id: str
    providers: tuple[str, ...]
    gpus: int
    gpus_per_node: int
    keep: bool
    torch: bool = False
    """Nodes have PyTorch and Open MPI, and MLflow runs on the head: all that recipes/ needs."""

    @property
    def nodes(self) -> int:
        """How many machines that takes."""
        return self.gpus // self.gpus_per_node

    def room(self) -> dict[str, int]:
        """How many machines fit into each cloud, so that all of several are needed; empty with a single one."""
        each, rest = divmod(self.nodes, len(self.providers))
        rooms = {name: each + (index < rest) for index, name in enumerate(self.providers)}
        return rooms if len(rooms) > 1 else {}

    def problem(self) -> str:
        """Why it cannot be done; "" when it can."""
        if not _ID.fullmatch(self.sandbox_id):
            return "--id is 1 to 12 small letters and digits"
        if self.gpus_per_node not in {1, 8}:
            return "--gpus-per-node is 1 or 8: all clouds have machines with so many H100"
        if self.gpus < 1 or self.gpus % self.gpus_per_node:
            return f"--gpus is a positive multiple of --gpus-per-node ({self.gpus_per_node})"
        if self.nodes < len(self.providers):
            return f"--gpus {self.gpus} is too few for a machine in each of {', '.join(self.providers)}"
        return ""


def default_gpus(providers: Sequence[str], gpus_per_node: int) -> int:
    """How many GPUs when nobody says: eight, or two machines in each of several clouds."""
    return 8 if len(providers) == 1 else 2 * len(providers) * gpus_per_node


def _cluster_module() -> ModuleType:
    return importlib.import_module("deploy.sandbox.cluster")


class Show:
    """One demonstration.

    Args:
        options: what to show.
        stay: called when all is done and is to stay; None: all of it goes.
    """

    def __init__(self, options: Options, stay: Callable[[Path], None] | None = None) -> None:
        self.options = options
        self.screen = Screen()
        self.logs = cache.cache_root() / "logs" / f"demo-{options.sandbox_id}"
        self._stay = stay
        self._reconfigures = [0, 0, 0]

    async def perform(self) -> int:
        """Run all stages; returns the exit status. Cleans up whatever happens."""
        screen, before = self.screen, checks.host_state()
        parts = PARTS + (TORCH_PARTS if self.options.torch else ())
        self._pids = PidFolder(Path())
        try:
            async with screen.stage("prepare images and programs", speaks=True):
                # The stand-ins take seconds to load: meanwhile the rest is looked at.
                await asyncio.gather(prepare.prepare(parts), asyncio.to_thread(_cluster_module))
            await self._inside()
            async with screen.stage("nothing is left on this host"):
                self._nothing_left(before)
        except asyncio.CancelledError:
            left = checks.traces(self.options.sandbox_id)
            screen.line("stopped; everything is cleaned up" if not left else f"stopped; left behind: {', '.join(left)}")
            return 130
        except (DifferenceError, CommandError, TailnetError, RuntimeError, OSError, TimeoutError) as error:
            text = str(error) or f"{type(error).__name__} (no further words)"
            screen.line(f"FAILED: {text}", "bold red")
            screen.line(f"logs: {self.logs}")
            return 1
        finally:
            await asyncio.to_thread(self._write_transcript)
        return 0

    async def _inside(self) -> None:
        module = _cluster_module()
        options = module.ClusterOptions(
            sandbox_id=self.options.sandbox_id,
            providers=self.options.providers,
            gpus_per_node=self.options.gpus_per_node,
            max_nodes=self.options.nodes,
            room=self.options.room(),
            timing=TIMING,
            share=True,
            mlflow=self.options.torch,
            head_image=HEAD_MLFLOW if self.options.torch else HEAD,
        )
        cluster: Cluster = module.Cluster(options)
        async with self.screen.stage("sandbox: network, control server of the tailnet, clouds"):
            await cluster.__aenter__()
        if self.options.torch:
            host = cluster.clouds.host
            host.boot_defaults = replace(host.boot_defaults, image=f"trixie{TORCH}")
        self._pids = PidFolder(cluster.world.state / "pids")
        try:
            await self._story(cluster)
        except BaseException as error:
            async with self.screen.stage("take everything down"):
                if not isinstance(error, asyncio.CancelledError):
                    await save(cluster, self.logs)
                await cluster.__aexit__(None, None, None)
            raise
        async with self.screen.stage("take everything down"):
            await cluster.__aexit__(None, None, None)

    async def _story(self, cluster: Cluster) -> None:
        screen, head = self.screen, cluster.head
        async with screen.stage("head: systemd, slurmctld, munge, tailscale, meshd"):
            await head.bring_up(cluster.head_options(), screen.note)
            await head.run("systemctl", "is-active", *UNITS)
        self._reconfigures[0] = (await self._meshctl(cluster, "status"))["slurm"]["reconfigures"]
        await self._scale(cluster, self.options.gpus, *(["--spread"] if len(self.options.providers) > 1 else []))
        self._reconfigures[1] = (await self._meshctl(cluster, "status"))["slurm"]["reconfigures"]
        await self._look(cluster, "meshctl", "nodes")
        await self._look(cluster, "sinfo")
        await self._job(cluster)
        if self._stay is not None:
            await self._report(cluster, gone=False)
            await self._kept(self._stay)
            return
        await self._scale(cluster, 0)
        async with screen.stage("Slurm, cloud and tailnet agree that all is given back"):
            await self._given_back(cluster)
        self._reconfigures[2] = (await self._meshctl(cluster, "status"))["slurm"]["reconfigures"]
        await self._look(cluster, "sinfo")
        await self._report(cluster, gone=True)

    async def _job(self, cluster: Cluster) -> None:
        """One job over all nodes, which must show each of them and each GPU, and a node of each cloud."""
        options, screen = self.options, self.screen
        async with screen.stage(f"a job over {options.nodes} nodes"):
            output = await job.run(cluster.head, options.nodes, options.gpus_per_node, screen.note)
        screen.block(output)
        found = checks.gpus_listed(output)
        if len(found) != options.gpus:
            raise DifferenceError(f"the job saw {len(found)} different GPUs, not {options.gpus}")
        rented = {row["slot"]: row["provider"] for row in (await self._meshctl(cluster, "nodes"))["nodes"]}
        by_provider = checks.providers_listed(output, rented, options.providers)
        wrong = checks.not_as_shared_out(by_provider, options.room() or {options.providers[0]: options.nodes})
        if wrong:
            raise DifferenceError(f"the job did not run in every cloud: {'; '.join(wrong)}")
        shares = ", ".join(f"{nodes} of {name}" for name, nodes in by_provider.items())
        screen.line(f"    {len(found)} different GPUs on {options.nodes} nodes: {shares}", "bold green")

    async def _scale(self, cluster: Cluster, gpus: int, *more: str) -> None:
        words = ["meshctl", "scale", "--gpus", str(gpus), *more, "--wait", "--yes", "--timeout", f"{SCALE_TIMEOUT_S}s"]
        async with self.screen.stage(" ".join(words[:-2])):
            argv = await cluster.world.hypervisor.command("head", words)
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
            assert process.stdout is not None
            try:
                async with asyncio.timeout(SCALE_TIMEOUT_S + 30):
                    async for line in process.stdout:
                        self.screen.line(f"    {line.decode(errors='replace').rstrip()}")
                    status = await process.wait()
            finally:
                if process.returncode is None:
                    # With the program inside the machine, which holds the pipe.
                    os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
            if status != 0:
                raise DifferenceError(f"`{' '.join(words)}` ended with status {status}")

    async def _look(self, cluster: Cluster, *argv: str) -> None:
        self.screen.line(f"$ {' '.join(argv)}", "bold")
        self.screen.block((await cluster.head.run(*argv)).text)

    async def _given_back(self, cluster: Cluster) -> None:
        """Devices and Slurm's records go a moment after the machines: all sides must agree within AGREE_S."""
        end = time.monotonic() + AGREE_S
        while wrong := await self._still_there(cluster):
            if time.monotonic() > end:
                raise DifferenceError("; ".join(wrong))
            await asyncio.sleep(0.5)

    async def _still_there(self, cluster: Cluster) -> list[str]:
        wrong: list[str] = []
        slots = (await cluster.head.run("sinfo", "-h", "-N", "-o", "%N|%T|%E")).text
        wrong += [f"Slurm: {slot}" for slot in checks.slots_not_free(slots)]
        if len(slots.splitlines()) != self.options.nodes:
            wrong.append(f"Slurm shows {len(slots.splitlines())} slots, not {self.options.nodes}")
        wrong += [f"cloud: {m} still runs" for m in checks.machines_running(await self._admin(cluster, "machines"))]
        wrong += [f"tailnet: {name} is still there" for name in checks.strangers(await cluster.world.tailnet.devices())]
        wrong += [f"machine {name} still runs" for name in cluster.world.hypervisor.names() if name != "head"]
        problems = (await self._meshctl(cluster, "status"))["problems"]
        return wrong + [f"meshctl status: {problem['text']}" for problem in problems]

    async def _report(self, cluster: Cluster, *, gone: bool) -> None:
        events = await self._events(cluster)
        lines = [line for line in report.timelines(events) if line.rented]
        status, costs = await self._meshctl(cluster, "status"), await self._admin(cluster, "costs")
        before, up, down = self._reconfigures
        totals = report.Totals(
            reconfigures_up=up - before,
            reconfigures_down=down - up if gone else None,
            usd_meshd=float(status["spend"]["usd_so_far"]),
            usd_cloud=float(costs["billed_usd"]),
            machines=sum(int(cloud["machines_ever"]) for cloud in costs["clouds"].values()),
            daemon_mib=await self._daemon_mib(cluster),
        )
        if len(self.options.providers) > 1:
            self.screen.show(report.ladder_table(report.rungs(events)))
        self.screen.show(report.machine_table(lines))
        self.screen.line(report.LEGEND)
        self.screen.show(totals.table())
        self.screen.show(report.stage_table(self.screen.stages))
        if len(lines) != self.options.nodes or totals.machines != self.options.nodes:
            raise DifferenceError(
                f"{self.options.nodes} machines were wanted; the journal tells of {len(lines)}, the clouds of "
                f"{totals.machines}"
            )

    async def _daemon_mib(self, cluster: Cluster) -> float:
        """Resident memory of meshd."""
        shown = await cluster.head.shell('cat "/proc/$(systemctl show -P MainPID meshd)/status"')
        return checks.resident_mib(shown)

    async def _kept(self, stay: Callable[[Path], None]) -> None:
        extra = "" if self.options.sandbox_id == "demo" else f" --id {self.options.sandbox_id}"
        self.screen.line()
        self.screen.line("All of it stays. Look at it:", "bold")
        for command, what in (
            (f"shell{extra}", "a root shell on the head: meshctl status, meshctl nodes, sinfo"),
            (f"shell{extra} head meshctl status", "one command on the head"),
            (f"down{extra}", "end it and remove every trace"),
        ):
            self.screen.line(f"    sudo deploy/demo {command:<40} # {what}")
        await asyncio.to_thread(self._write_transcript)
        stay(self.logs / "kept.log")
        await asyncio.Event().wait()

    async def _meshctl(self, cluster: Cluster, *argv: str) -> dict[str, Any]:
        answer: dict[str, Any] = await cluster.head.json("meshctl", *argv, "-o", "json")
        return answer

    async def _events(self, cluster: Cluster) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        after = 0
        while True:
            page = await self._meshctl(cluster, "events", "--after", str(after), "--limit", "1000")
            events += page["events"]
            if len(page["events"]) < 1000:
                return events
            after = int(page["last_id"])

    async def _admin(self, cluster: Cluster, path: str) -> dict[str, Any]:
        url = f"http://{GATEWAY}:{_cluster_module().ADMIN_PORT}/{path}"
        answer: dict[str, Any] = await cluster.head.json("curl", "-fsS", "--max-time", "20", url)
        return answer

    def _nothing_left(self, before: dict[str, str]) -> None:
        left = checks.traces(self.options.sandbox_id, self._pids.recorded())
        left += checks.changed(before, checks.host_state())
        if left:
            raise DifferenceError(f"left on this host: {'; '.join(left)}")

    def _write_transcript(self) -> None:
        self.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.logs / "transcript.txt").write_text("\n".join(self.screen.lines) + "\n")
