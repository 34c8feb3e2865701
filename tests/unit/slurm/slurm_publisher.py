"""A publisher with a stand-in slurmctld, which reads the same files and dies where the real one does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from meshd.errors import CommandError, CommandTimeout
from meshd.model.hardware import NodeShape
from meshd.runtime.run import Result
from meshd.slurm.client import SlurmClient
from meshd.slurm.conf import parse
from meshd.slurm.files import SlurmFiles, Texts
from meshd.slurm.headfiles import put
from meshd.slurm.nodes import JoinedNode, PoolLine, Rendered, render
from meshd.slurm.publish import Publisher
from meshd.slurm.read_back import read_cloud_slots, read_node_addrs
from meshd.slurm.show import hostlist

OFF = "IDLE+CLOUD+POWERED_DOWN"
POOL = PoolLine("a", "", 4, "", 0, 1, 1024)


class JumpingClock:
    """Time passes only by sleeping, and at once."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.on_sleep: Callable[[], None] = lambda: None

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.time_s)

    def monotonic_s(self) -> float:
        return self.time_s

    async def sleep(self, delay_s: float) -> None:
        self.time_s += delay_s
        self.on_sleep()
        await asyncio.sleep(0)


class StandInSlurm:
    """slurmctld with the commands that meshd uses. `version` decides what a changed node set does to it."""

    def __init__(self, directory: Path, version: str) -> None:
        self.directory = directory
        self.version = version
        self.running = True
        self.addresses: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self.jobs: list[tuple[str, str, str]] = []
        self.waiting: list[tuple[str, str]] = []
        self.reservations = ""
        self.takes_junk = self.takes_no_addresses = False
        self.calls: list[str] = []
        self.reconfigure_times_out = False
        self.dislikes: set[str] = set()
        self.start()

    def start(self) -> None:
        """Start with what is in the file; end at once when it cannot be read."""
        table = self._table()
        self.running = table is not None
        if table is not None:
            text = (self.directory / "nodes.conf").read_text()
            cloud, kept = read_cloud_slots(text), self.addresses if self.version >= "23.11" else {}
            kept = {name: kept[name] for name in cloud & kept.keys() if "CLOUD" in self.states[name]}
            self.addresses = {**table, **kept}
            free = set(table) - set(read_node_addrs(text)) - cloud
            states = {name: state for name, state in self.states.items() if ("CLOUD" in state) == (name in cloud)}
            states |= dict.fromkeys(cloud - states.keys(), OFF)
            self.states = {name: "DOWN" if name in free else states.get(name, "IDLE") for name in table}

    def _table(self) -> dict[str, str] | None:
        text = (self.directory / "nodes.conf").read_text()
        table: dict[str, str] = {}
        for line in parse(text).lines:
            if not self.takes_junk and any(pair.key == "Junk" for pair in line.pairs):
                return None
            if line.value("NodeName"):
                names, addresses = hostlist(line.value("NodeName") or ""), hostlist(line.value("NodeAddr") or "")
                table |= dict(zip(names, addresses, strict=True))
        return table

    async def __call__(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes | None = None,
        env: Mapping[str, str] | None = None, check: bool = True,
    ) -> Result:  # fmt: skip
        self.calls.append(" ".join(argv))
        if self._table() is None:
            return self._end(argv, 1, "scontrol: fatal: Unable to process configuration file", check)
        if argv[:2] == ["scontrol", "ping"]:
            return self._end(argv, 0, f"Slurmctld(primary) at head is {'UP' if self.running else 'DOWN'}\n", check)
        if not self.running:
            return self._end(argv, 1, "slurm error: Unable to contact slurm controller (connect failure)", check)
        match argv[:3]:
            case ["scontrol", "show", "config"]:
                return self._end(argv, 0, f"SLURM_VERSION = {self.version}\n", check)
            case ["scontrol", "show", "nodes"]:
                lines = [f"NodeName={n} NodeAddr={a} State={self.states[n]}\n" for n, a in self.addresses.items()]
                return self._end(argv, 0, "".join(lines), check)
            case ["scontrol", "show", "reservation"]:
                return self._end(argv, 0, self.reservations or "No reservations in the system\n", check)
            case ["scontrol", "update", name] if name.startswith("nodename=") and argv[3].startswith("nodeaddr="):
                if self.takes_no_addresses:
                    return self._end(argv, 1, "slurm_update error: Unspecified error", check)
                names, places = (word.partition("=")[2].split(",") for word in argv[2:4])
                self.addresses |= dict(zip(names, places, strict=True))
                return self._end(argv, 0, "", check)
            case ["scontrol", "reconfigure"]:
                return self._reconfigure(argv, timeout_s, check)
            case ["squeue", *_]:
                mark = (env or {})["SQUEUE_FORMAT2"].partition(":")[2].partition(",")[0]
                lines = [
                    mark.join(
                        [
                            i,
                            "u",
                            "a",
                            "RUNNING",
                            node,
                            "None",
                            "1",
                            "N/A",
                            "N/A",
                            "(null)",
                            age,
                            "",
                            "",
                            "1",
                            "1",
                            "",
                            "\n",
                        ]
                    )
                    for i, node, age in self.jobs
                ]
                lines += [
                    mark.join(
                        [str(i), "u", part, "PENDING", "", "", "1", "", "", "", "0:00", nodes, "", "1", "1", "", "\n"]
                    )
                    for i, (part, nodes) in enumerate(self.waiting, 90)
                ]
                return self._end(argv, 0, "".join(lines), check)
        raise AssertionError(f"not known: {argv}")

    def _reconfigure(self, argv: Sequence[str], timeout_s: float, check: bool) -> Result:
        table = self._table()
        assert table is not None
        if self.dislikes & set(table.values()):
            return self._end(argv, 1, "slurm_reconfigure error: Unspecified error", check)
        if self.version < "23.11" and set(table) != set(self.addresses):
            self.running = False
            return self._end(argv, 1, "slurm_reconfigure error: Zero Bytes were transmitted or received", check)
        self.start()
        if self.reconfigure_times_out:
            raise CommandTimeout(list(argv), timeout_s)
        return self._end(argv, 0, "", check)

    @staticmethod
    def _end(argv: Sequence[str], code: int, text: str, check: bool) -> Result:
        if code and check:
            raise CommandError(list(argv), code, text)
        return Result(tuple(argv), code, "" if code else text, text if code else "")

    def count(self, call: str) -> int:
        return sum(1 for made in self.calls if made.startswith(call))


class PublisherLab:
    """A publisher, its directory of files, its slurmctld and its clock."""

    def __init__(self, directory: Path, version: str = "24.11.5") -> None:
        self.files = SlurmFiles(directory, write=self.write)
        (directory / "nodes.conf").write_text(render([POOL], [], shapes_fixed=True).nodes_conf)
        (directory / "gres.conf").write_text("")
        self.slurm = StandInSlurm(directory, version)
        self.clock = JumpingClock()
        self.restarts = 0
        self.publisher = self.made()

    def made(self, wait_until_quiet: Callable[[], Awaitable[None]] | None = None) -> Publisher:
        """A publisher as after a start of the daemon."""
        return Publisher(
            files=self.files, client=SlurmClient(self.slurm, 5.0), clock=self.clock, restart=self.restart,
            last_errors=self.last_errors, wait_until_quiet=wait_until_quiet,
        )  # fmt: skip

    async def write(self, texts: Texts) -> None:
        """Without a look at the lines: what Slurm refuses must get through to it."""
        put(self.files.directory, texts.nodes, texts.gres)

    async def restart(self) -> None:
        self.restarts += 1
        self.slurm.start()

    async def last_errors(self) -> str:
        return "fatal: its own words" if not self.slurm.running else ""


def wanted(*slots: str, size: int = 4, from_queue: bool = False) -> Rendered:
    joined = [JoinedNode(slot, f"100.64.0.{slot[2:]}", NodeShape(2, 1, 1, 2, 1, 4096)) for slot in slots]
    return render([PoolLine("a", "", size, "", 0, 1, 1024, from_queue=from_queue)], joined, shapes_fixed=True)
