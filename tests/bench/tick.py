"""What a tick costs in steady state: the daemon's own parts over 100, 1,000 and 10,000 hollow machines, nothing to do.

Each size runs in a process of its own, so that its memory is its own. The daemon is the real one with its real journal
and files; cloud, tailnet and Slurm are what they would say, parsed once. Nothing is asked of any of them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from meshd import config
from meshd.daemon.app import Daemon, build
from meshd.daemon.head_api.views import cluster_view_of, status_line
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.ports import open_ports
from meshd.model.observed import Fresh, SlurmView
from meshd.runtime.gc_tuning import tune_gc
from meshd.slurm.files import SlurmFiles, Texts
from meshd.slurm.show import parse_nodes
from meshd.store.journal import Journal
from meshd.tailnet.deltas import Delta, apply
from providers.aws.mapping import to_instance
from tests.bench import fleet
from tests.bench.report import Row, report

SIZES = (100, 1000, 10000)
TICK_TARGET_MS = 200.0
RSS_TARGET_MIB = 200.0
SETTINGS = """\
[cluster]
name = "lab"
state_dir = "{state}"
socket = "{state}/meshd.sock"

[log]
level = "error"

[pools.h100]
gpu = "h100"
gpus_per_node = 8
max_nodes = {count}

[providers.aws]
regions = ["us-east-1"]
access_key_id = "AKIASANDBOXSANDBOX00"
secret_access_key_file = "{state}/secret"
endpoint_url = "{endpoint_url}"
"""


def rss_mib() -> float:
    """Resident memory now."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def cpu_ms(work: Callable[[], object], repetitions: int = 7) -> float:
    """Median CPU time of the process, in milliseconds."""
    taken = []
    for _ in range(repetitions):
        started = time.process_time()
        work()
        taken.append((time.process_time() - started) * 1000)
    return median(taken)


class Steady:
    """A daemon whose fleet is READY and wanted, and all of whose sources say so."""

    def __init__(self, state: Path, count: int, spare: int = 0, endpoint_url: str = "", more: str = "") -> None:
        self.count = count
        self.state = state
        (state / "secret").write_text("secret")
        path = state / "meshd.toml"
        path.write_text(SETTINGS.format(state=state, count=count + spare, endpoint_url=endpoint_url) + more)
        self.settings = config.load(path)
        self.path = path

    def fill(self) -> None:
        """Write the journal."""
        journal = Journal(self.state / "journal.db")
        journal._db.execute("PRAGMA synchronous = OFF")
        for i in range(1, self.count + 1):
            journal.put(fleet.ready(i), "phase", "ready: slurmd answers", fleet.BORN)
        journal.close()

    async def daemon(self, **ports: Any) -> Daemon:
        """The daemon, after its first look; `ports` are in the place of the real ones."""
        journal = Journal(self.settings.cluster.state_dir / "journal.db")
        live = LiveSettings(self.settings, self.path, journal.machines)
        daemon = build(live, journal, replace(open_ports(self.settings), **ports))
        now = daemon.ports.clock.now()
        nodes = parse_nodes("\n".join(fleet.scontrol_nodes(self.count)) or "No nodes in the system")
        daemon.sources.slurm.current = Fresh(SlurmView("24.11.5", nodes, ()), now)
        listing = tuple(to_instance(fleet.described(i), "us-east-1") for i in range(1, self.count + 1))
        daemon.sources.listings["aws"].current = Fresh(listing, now)
        daemon.sources.offers["aws"].current = Fresh((fleet.OFFER,), now)
        daemon.tailnet._publish(fleet.peers(self.count))
        wanted = daemon.slurm_files._make()
        assert wanted is not None
        (self.state / "slurm").mkdir()
        daemon.slurm_files._directory = self.state / "slurm"
        files, texts = SlurmFiles(self.state / "slurm"), Texts(wanted.nodes_conf, wanted.gres_conf)
        await files.install(texts)
        files.mark_good(texts)
        await daemon.slurm_files.start()
        tune_gc()
        return daemon


def status_line_of(daemon: Daemon) -> None:
    """What systemd is told once a second."""
    problems = daemon.head.service.problems()
    view = cluster_view_of(daemon.snapshot(), daemon.desired().policy, daemon.ports.clock.now())
    status_line(daemon.journal.machines(), problems, view)


async def measure(count: int) -> dict[str, float]:
    """All figures of one size."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as directory:
        steady = Steady(Path(directory), count)
        steady.fill()
        gc.collect()
        started = time.process_time()
        daemon = await steady.daemon()
        figures["daemon made, journal read, all parsed (ms)"] = (time.process_time() - started) * 1000
        first = daemon.machines.controller.tick()
        assert not first.plan.steps, first.plan.steps[:3]
        figures["tick (ms)"] = cpu_ms(daemon.machines.controller.tick)
        figures["status line and watchdog, once a second (ms)"] = cpu_ms(partial(status_line_of, daemon))
        figures["look at Slurm's files, 20 a second (ms)"] = cpu_ms(daemon.slurm_files.look, 21)
        figures["memory (MiB)"] = rss_mib()
        figures |= parses(count, daemon, Path(directory))
        assert not daemon.machines.controller.tick().plan.steps
        await daemon.machines.executor.aclose(0.1)
        daemon.journal.close()
        figures["journal read (ms)"] = cpu_ms(lambda: Journal(Path(directory) / "journal.db").close(), 3)
    return figures


def parses(count: int, daemon: Daemon, directory: Path) -> dict[str, float]:
    """What one change costs, and one reading of each source."""
    text = "\n".join(fleet.scontrol_nodes(count))
    raw = [fleet.described(i) for i in range(1, count + 1)]
    table = fleet.peers(count)
    peer = table.peers["n1"]
    deltas = [Delta(changed=((1, replace(peer, path=f"direct 10.0.0.{i % 200}:1")),)) for i in range(100)]
    machine = daemon.journal.machines()[0]

    def delta() -> None:
        daemon.tailnet._publish(apply(daemon.tailnet.table or table, deltas.pop())[0])

    def heartbeat() -> None:
        daemon.journal.note(replace(machine, heartbeat_at=daemon.ports.clock.now()))

    def change() -> None:
        daemon.journal.put(machine, "note", "a change", daemon.ports.clock.now())
        daemon.slurm_files.look()

    def token() -> None:
        daemon.ports.tokens.whose_node("0" * 64, daemon.nodes.node_tokens.generations())

    token()
    return {
        "scontrol show nodes parsed (ms)": cpu_ms(lambda: parse_nodes(text), 3),
        "EC2 listing parsed (ms)": cpu_ms(lambda: [to_instance(one, "us-east-1") for one in raw], 3),
        "tailnet delta (ms)": cpu_ms(delta, 21),
        "heartbeat noted (ms)": cpu_ms(heartbeat, 21),
        "journal change and what it makes anew (ms)": cpu_ms(change, 5),
        "node token looked up (ms)": cpu_ms(token, 21),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", type=int, help="measure this size only, and print JSON")
    parser.add_argument("--profile", type=int, help="profile ticks of this size instead")
    arguments = parser.parse_args()
    if arguments.one:
        sys.stdout.write(json.dumps(asyncio.run(measure(arguments.one))))
        return
    if arguments.profile:
        asyncio.run(profile(arguments.profile))
        return
    figures: dict[str, Any] = {}
    rows: list[Row] = []
    for size in SIZES:
        argv = [sys.executable, "-m", "tests.bench.tick", "--one", str(size)]
        figures[str(size)] = json.loads(
            subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1]
        )
        for what, value in figures[str(size)].items():
            label, _, unit = what.rpartition(" (")
            limits = {"tick": TICK_TARGET_MS, "memory": RSS_TARGET_MIB} if size == SIZES[-1] else {}
            rows.append(Row(f"{size:6} machines: {label}", value, unit.rstrip(")"), limits.get(label)))
    report("tick", rows, {"sizes": figures})


async def profile(count: int) -> None:
    """Where a tick's time goes."""
    import cProfile
    import pstats

    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as directory:
        steady = Steady(Path(directory), count)
        steady.fill()
        daemon = await steady.daemon()
        daemon.machines.controller.tick()
        profiler = cProfile.Profile()
        profiler.enable()
        for _ in range(5):
            daemon.machines.controller.tick()
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
