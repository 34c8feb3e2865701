"""What a daemon with nothing to do costs in a minute: 100, 1,000 and 10,000 hollow machines, all READY.

The loops of the real daemon run: ticks, Slurm, the cloud's listing over HTTP through the real adapter and SDK. EC2
answers from another process, `scontrol` and `squeue` are scripts that print what Slurm would; only the daemon's own CPU
is counted. The tailnet is silent, and the node agents' polls are not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench import ec2_pages, fleet
from tests.bench.report import Row, report
from tests.bench.tick import SIZES, Steady, rss_mib

SECONDS = 60.0
SCONTROL = """\
#!/bin/sh
case "$*" in
"show nodes -o") exec cat {directory}/nodes ;;
"show config") echo "SLURM_VERSION = 24.11.5" ;;
"ping") echo "Slurmctld(primary) at head is UP" ;;
update*) echo "$*" >>{directory}/updates ;;
esac
"""


def programs(directory: Path, count: int) -> None:
    """`scontrol` and `squeue` of a cluster without jobs, first in PATH."""
    (directory / "nodes").write_text("\n".join(fleet.scontrol_nodes(count)) + "\n")
    for name, text in (("scontrol", SCONTROL.format(directory=directory)), ("squeue", "#!/bin/sh\n")):
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    os.environ["PATH"] = f"{directory}:{os.environ['PATH']}"


MORE = """
[slurm]
head_hosts = false
poll_interval_s = {slurm_s}

[timing]
provider_poll_interval_s = {cloud_s}
tick_interval_s = {slurm_s}
"""


async def measure(count: int, seconds: float, interval_s: float | None) -> dict[str, float]:
    """CPU and memory of one size; with `interval_s` everything is read so often instead of as by default."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name, ec2_pages.serving(count) as url:
        directory = Path(name)
        programs(directory, count)
        more = MORE.format(slurm_s=interval_s or 5.0, cloud_s=interval_s or 15.0)
        steady = Steady(directory, count, endpoint_url=url, more=more)
        steady.fill()
        daemon = await steady.daemon()
        listing = daemon.sources.listings["aws"]
        await asyncio.gather(daemon.sources.slurm.read_once(), listing.read_once())
        assert not daemon.machines.controller.tick().plan.steps
        loops = [
            asyncio.create_task(body)
            for body in (daemon.sources.slurm.run(), listing.run(), daemon.machines.controller.run())
        ]
        began_s, wall_s = time.process_time(), time.monotonic()
        seen, listings = listing.current, 0
        while time.monotonic() - wall_s < seconds:
            await asyncio.sleep(0.5)
            listings += listing.current is not seen
            seen = listing.current
        cpu_s = time.process_time() - began_s
        for loop in loops:
            assert not loop.done(), loop
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await daemon.machines.executor.aclose(0.1)
        daemon.journal.close()
        return {
            "cpu_s": cpu_s, "listings": listings, "memory_mib": rss_mib(),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--interval", type=float, help="read Slurm and the cloud once in so many seconds")
    parser.add_argument("--one", type=int, help="measure this size only, and print JSON")
    arguments = parser.parse_args()
    if arguments.one:
        sys.stdout.write(json.dumps(asyncio.run(measure(arguments.one, arguments.seconds, arguments.interval))))
        return
    figures, rows = {}, []
    for size in SIZES:
        argv = [sys.executable, "-W", "ignore", "-m", "tests.bench.idle", "--one", str(size)]
        argv += ["--seconds", str(arguments.seconds)]
        argv += ["--interval", str(arguments.interval)] if arguments.interval else []
        found = json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
        figures[size] = found
        rows += [
            Row(f"{size:6} machines: CPU in {arguments.seconds:g} s", found["cpu_s"], "s"),
            Row(f"{size:6} machines: listings in that time", found["listings"], ""),
            Row(f"{size:6} machines: memory at the peak", found["peak_mib"], "MiB"),
        ]
    report("idle", rows, {"seconds": arguments.seconds, "sizes": figures})


if __name__ == "__main__":
    main()
