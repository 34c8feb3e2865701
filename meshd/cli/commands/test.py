"""`meshctl test`: measures how fast nodes are together, as a job of the user who calls it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass

import click

from meshd.api import endpoints
from meshd.api.schema import AllReduceView, NodeRow, NodesView, StatusView
from meshd.bootstrap.assets import allreduce_program
from meshd.cli.acceptance import judge, reports
from meshd.cli.client import HeadClient
from meshd.cli.errors import CliError, ExitCode, interrupted
from meshd.cli.params.options import as_json_option, subjects_argument
from meshd.cli.params.values import NonEmpty, WholeNumber, duration
from meshd.cli.render.allreduce import allreduce
from meshd.cli.render.terminal import show, spinner
from meshd.cli.session import Session, print_json, say
from meshd.errors import CommandError, CommandNotFound, CommandTimeout
from meshd.plaintext import counted
from meshd.runtime.run import Result, run

CHECK_S = 180
"""For PyTorch to be loaded from a slow share, everywhere."""
MEASURE_S = 900
SUM_S = 120
"""Longest that the ranks wait for each other in one sum."""
SAID_MAX = 600

TASK = """\
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID USE_LIBUV=0
export MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK USE_LIBUV
python=$1 program=$2
shift 2
exec "$python" -c "$program" "$@"
"""
"""What each task runs. Debian's PyTorch has no libuv."""

EXAMPLES = """\b
Examples:
  meshctl test h100                          all nodes of a pool that are ready
  meshctl test h100-3 h100-4                 only these
  meshctl test h100 --pairs                  each pair too: shows which node is slow
  meshctl test h100 --python ~/env/bin/python
"""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The nodes to test: all of one partition."""

    nodes: tuple[str, ...]
    partition: str
    gpus: int


@click.command("test", epilog=EXAMPLES)
@subjects_argument
@click.option("--pairs", is_flag=True, help="Also measure each pair of nodes.")
@click.option(
    "--python", metavar="PATH", type=NonEmpty(), default="python3", show_default=True,
    help="The Python on the nodes that has PyTorch.",
)  # fmt: skip
@click.option(
    "--mib", metavar="N", type=WholeNumber(1, 4096), default=64, show_default=True, help="Size of the tensor in MiB."
)
@click.option(
    "--wait", "wait_s", metavar="TIME", callback=duration, default="60s", show_default=True,
    help="How long to wait until the nodes are free.",
)  # fmt: skip
@as_json_option
@click.pass_obj
def command(
    session: Session, *, subjects: tuple[str, ...], pairs: bool, python: str, mib: int, wait_s: float, as_json: bool
) -> None:
    """Measure how fast nodes are together: an acceptance test.

    It submits a job as you, on all these nodes and all their GPUs, which sums a tensor over the network with NCCL, or
    with gloo where there are no GPUs, and checks each sum. Name a pool, or nodes of one pool.

    The nodes need PyTorch. Other jobs wait meanwhile. The exit code is 0 when all nodes are ok.
    """
    chosen = session.ask(lambda head: _choose(head, subjects))
    try:
        view = asyncio.run(_test(chosen, python, pairs=pairs, mib=mib, wait_s=wait_s))
    except KeyboardInterrupt:
        raise interrupted("interrupted: the job was cancelled") from None
    if as_json:
        print_json(view)
    else:
        show(*allreduce(view))
    bad = [node for node in view.nodes if node.verdict != "ok"]
    if not bad:
        return
    if any(node.verdict == "no_torch" for node in bad):
        cure = "install it on the nodes (`packages` of the pool), or name a Python that has it with --python"
        raise CliError(f"no PyTorch on {counted(len(bad), 'node')}", cure, kind="no_torch")
    cure = "" if pairs or len(chosen.nodes) < 3 else "`--pairs` shows which node it is"
    raise CliError(f"{len(bad)} of {counted(len(view.nodes), 'node')} did not pass", cure, kind="unhealthy")


async def _choose(head: HeadClient, subjects: Sequence[str]) -> Chosen:
    """The nodes that these pools, slots and machines stand for."""
    return choose(await head.call(endpoints.NODES), await head.call(endpoints.STATUS), subjects)


def choose(nodes: NodesView, status: StatusView, subjects: Sequence[str]) -> Chosen:
    """PURE: the nodes to test.

    Raises:
        CliError: a name stands for nothing, a node that was named is not ready, or they are of several pools.
    """
    pools = {pool.name: pool.partition for pool in status.pools}
    rows: dict[str, NodeRow] = {}
    for name in subjects:
        named = [row for row in nodes.nodes if name in (row.slot, row.machine)]
        found = [row for row in nodes.nodes if row.pool == name] if name in pools else named
        ready = [row for row in found if row.phase == "ready"]
        if not ready or (named and len(ready) < len(named)):
            if name not in pools and not named:
                text = f"there is no node and no pool {name}"
                raise CliError(text, "see `meshctl nodes`", code=ExitCode.USAGE, kind="not_found")
            what = f"no node of pool {name} is ready" if name in pools else f"{name} is {named[0].phase}, not ready"
            raise CliError(what, f"see `meshctl explain {name}`", kind="not_ready")
        rows |= {row.slot: row for row in ready}
    of = {row.pool for row in rows.values()}
    if len(of) > 1:
        text = f"these nodes are of several pools: {', '.join(sorted(of))}"
        raise CliError(text, "test one pool after the other", code=ExitCode.USAGE, kind="bad_request")
    for row in rows.values():
        if row.unfit:
            say(f"warning: {row.slot}: {row.unfit_text}")
    chosen = sorted(rows)
    return Chosen(tuple(chosen), pools.get(min(of), ""), min(row.gpus for row in rows.values()))


async def _test(chosen: Chosen, python: str, *, pairs: bool, mib: int, wait_s: float) -> AllReduceView:
    """Look for PyTorch everywhere first: ranks that cannot start would keep the others waiting."""
    count = counted(len(chosen.nodes), "node")
    with spinner(f"looking for PyTorch on {count} ..."):
        checked = await _submit(chosen, python, ["--check"], tasks=1, gpus=0, wait_s=wait_s, limit_s=CHECK_S)
    view = judge(chosen.nodes, reports(checked.stdout), measured=False)
    if any(node.verdict != "ok" for node in view.nodes):
        _say_end(checked)
        return view
    options = [f"--mib={mib}", f"--timeout={SUM_S}", *(["--pairs"] if pairs else [])]
    with spinner(f"measuring {count} ..."):
        measured = await _submit(
            chosen, python, options, tasks=max(1, chosen.gpus), gpus=chosen.gpus, wait_s=wait_s, limit_s=MEASURE_S
        )
    view = judge(chosen.nodes, reports(measured.stdout))
    if any(node.verdict != "ok" for node in view.nodes):
        _say_end(measured)
    return view


async def _submit(
    chosen: Chosen, python: str, options: Sequence[str], *, tasks: int, gpus: int, wait_s: float, limit_s: int
) -> Result:
    """Run the program on all nodes, and wait for its end.

    Raises:
        CliError: it did not start, or did not end in time.
    """
    name = f"meshctl-test-{os.getpid()}"
    argv = [
        "srun", f"--job-name={name}", f"--nodelist={','.join(chosen.nodes)}", f"--nodes={len(chosen.nodes)}",
        f"--ntasks-per-node={tasks}", "--chdir=/tmp", f"--immediate={max(1, round(wait_s))}", "--input=none",
        f"--time={max(1, limit_s // 60)}", *([f"--partition={chosen.partition}"] if chosen.partition else []),
        *([f"--gpus-per-node={gpus}"] if gpus else []),
        "sh", "-c", TASK, "sh", python, allreduce_program(), "--json", *options,
    ]  # fmt: skip
    ended = False
    try:
        result = await run(argv, timeout_s=wait_s + limit_s + 60, check=False)
        ended = True
    except CommandNotFound:
        raise CliError("there is no srun here", "run it on the head, or where Slurm's commands are") from None
    except CommandTimeout:
        raise CliError(f"the job did not end within {limit_s} s", "see `squeue`", code=ExitCode.TIMED_OUT) from None
    finally:
        if not ended:
            await asyncio.shield(_cancel(name))
    if result.returncode != 0 and "{" not in result.stdout:
        said = result.stderr.strip()[-SAID_MAX:]
        cure = f"see `squeue --nodelist={','.join(chosen.nodes)}` and `sinfo`; --wait TIME waits longer"
        raise CliError(f"the job did not start: {said or f'srun ended with {result.returncode}'}", cure, kind="not_run")
    return result


async def _cancel(name: str) -> None:
    try:
        await run(["scancel", f"--name={name}", "--me"], timeout_s=20)
    except CommandError as error:
        say(f"the job was not cancelled: {error}: scancel --name={name}")


def _say_end(result: Result) -> None:
    """What the tasks said on stderr, for whoever looks for the cause."""
    if said := result.stderr.strip():
        say(said[-SAID_MAX:])
