"""The job that the demonstration runs: an ordinary user's sbatch over all nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from deploy.sandbox.demo.checks import DifferenceError
from deploy.sandbox.headmachine import USER, Head

TIMEOUT_S = 120.0
_POLL_S = 0.5
_ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"}

SCRIPT = """\
#!/bin/sh
#SBATCH --job-name=gpus
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --output=/home/demo/gpus-%j.out
echo "job $SLURM_JOB_ID of $(id -un) on $SLURM_JOB_NODELIST"
srun --label sh -c '
    echo "node $SLURMD_NODENAME"
    nvidia-smi -L'
"""


async def run(head: Head, nodes: int, gpus_per_node: int, say: Callable[[str], None]) -> str:
    """Submit it, wait for its end, and return what it printed.

    Raises:
        DifferenceError: it did not end well.
    """
    script = SCRIPT.format(nodes=nodes, gpus=gpus_per_node)
    job = (await as_user(head, "sbatch", "--parsable", "--chdir=/tmp", stdin=script)).split(";")[0]
    say(f"sbatch: job {job}, as user {USER}")
    state = ""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while state not in _ENDED:
                await asyncio.sleep(_POLL_S)
                state = await as_user(head, "squeue", "-h", "-t", "all", "-j", job, "-o", "%T")
    except TimeoutError:
        raise DifferenceError(f"job {job} is still {state} after {TIMEOUT_S:.0f} s") from None
    first = await as_user(head, "squeue", "-h", "-t", "all", "-j", job, "-o", "%B")
    file = f"/home/{USER}/gpus-{job}.out"
    shared = (await head.run("test", "-e", file, check=False)).returncode == 0
    say(f"job {job}: {state}; its output is {file} on {'the head' if shared else first}")
    # A pod has no share: the output is where the job's script ran, and Slurm is the way to it.
    there = [] if shared else ["srun", "--quiet", "--chdir=/tmp", "-N1", "-n1", "-w", first]
    output = await as_user(head, *there, "cat", file)
    if state != "COMPLETED":
        raise DifferenceError(f"job {job} ended as {state}: {output}")
    return output


async def as_user(head: Head, *argv: str, stdin: str = "") -> str:
    """Run a program on the head as the ordinary user."""
    return (await head.run("runuser", "-u", USER, "--", *argv, stdin=stdin.encode(), timeout_s=TIMEOUT_S)).text
