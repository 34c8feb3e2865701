"""Many nodes at once with the head's home directories: how long until all are READY, and all have written into a home.

Real machines of one sandbox. With `--without`, the same without shares, for comparison. The share's data does not pass
the network here (docs/sandbox.md): this measures meshd, root's unit, exportfs and the agents, not NFS.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from deploy.sandbox.cluster import Cluster, ClusterOptions
from deploy.sandbox.demo.show import TIMING
from tests.bench.report import Row, report

USER = "demo"
LIMIT_S = 480


async def measure(nodes: int, *, share: bool) -> dict[str, float]:
    """The seconds of each step."""
    options = ClusterOptions(sandbox_id="bshares", max_nodes=nodes, timing=TIMING, boot_s=0.2, end_s=0.2, share=share)
    async with Cluster(options) as cluster:
        head = await cluster.bring_up_head()
        began_s = time.monotonic()
        words = ("scale", "--gpus", str(nodes), "--yes", "--wait", "--timeout", f"{LIMIT_S}s", "-o", "json")
        await head.run("meshctl", *words, timeout_s=LIMIT_S + 30)
        took = {"all READY": time.monotonic() - began_s}
        if share:
            served = await head.shell("journalctl -u meshd-exports.service -o cat | grep -c Starting || true")
            took["runs of root's unit"] = float(served)
            began_s = time.monotonic()
            srun = ("srun", f"-N{nodes}", f"--chdir=/home/{USER}", "sh", "-c", "hostname >$SLURMD_NODENAME.txt")
            await head.run("runuser", "-u", USER, "--", *srun, timeout_s=120)
            took["a job on all writes into the home"] = time.monotonic() - began_s
            there = (await head.shell(f"ls /home/{USER}")).split()
            assert sum(name.startswith("h100-") for name in there) == nodes, there
        return took


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--without", action="store_true", help="without shares")
    arguments = parser.parse_args()
    took = asyncio.run(measure(arguments.nodes, share=not arguments.without))
    rows = [
        Row(f"{arguments.nodes} nodes: {what}", value, "" if "runs" in what else "s") for what, value in took.items()
    ]
    report("shares_without" if arguments.without else "shares", rows, {"nodes": arguments.nodes, **took})


if __name__ == "__main__":
    main()
