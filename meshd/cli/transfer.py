"""Files between the head and nodes, by rsync inside a job of the caller: `meshctl push` and `pull`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.cli.errors import CliError, ExitCode
from meshd.cli.node_shell import PORTS, SRUN
from meshd.errors import CommandError, CommandNotFound, CommandTimeout
from meshd.runtime.run import Runner

SLURM_S = 20.0
IMMEDIATE_S = 20
"""How long a transfer without a job waits for a free place on its node."""

PARTIAL = ".rsync-partial"
"""Beside each file that is under way. What is in it is used when the same command runs again."""

_JOB = re.compile(r"\d{1,10}(_\d{1,7})?")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_OF_A_JOB = re.compile(r"(SLURM|SBATCH|SRUN)_\w+")
_OF_THE_CLUSTER = ("SLURM_CONF", "SLURM_CONF_SERVER")


@dataclass(frozen=True, slots=True)
class Place:
    """A path on a node. `node` is "" for all nodes of a job."""

    node: str
    path: str


@dataclass(frozen=True, slots=True)
class Route:
    """How a node is reached: the job whose step runs there; 0: a small job of its own in this partition."""

    node: str
    job: int
    partition: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """More options for rsync."""

    delete: bool = False
    dry_run: bool = False
    compress: bool = False
    progress: bool = False
    exclude: tuple[str, ...] = ()


def place(text: str) -> Place | None:
    """`NODE:PATH` or `:PATH`; None for a path on the head: one without a colon, or with `/` before it.

    Raises:
        CliError: what stands before the colon is no node's name.
    """
    node, colon, path = text.partition(":")
    if not colon or "/" in node:
        return None
    if node and not _NODE.fullmatch(node):
        raise CliError(
            f"{node!r} is no node", f"for a file of that name on the head write ./{text}", code=ExitCode.USAGE,
            kind="usage",
        )  # fmt: skip
    return Place(node, path)


def local(path: str) -> str:
    """A path on the head as rsync takes it, whatever its name is."""
    return path if "/" in path.partition(":")[0] or ":" not in path else f"./{path}"


def rsync_argv(
    route: Route,
    sources: Sequence[str | Place],
    target: str | Place,
    wanted: Wanted,
    *,
    environment: Mapping[str, str],
    ports: str,
    home: str,
) -> list[str]:
    """The command line, with `env` before it.

    Args:
        route: to the node of all places here.
        sources: what is copied; a path with `/` at its end stands for the files in it.
        target: where to.
        wanted: options.
        environment: of meshctl: what a job has put there would tell srun other things.
        ports: SrunPortRange.
        home: where paths without `/` at their beginning start.
    """
    step = [f"--jobid={route.job}", "--overlap", "--gres=none"] if route.job else [
        f"--partition={route.partition}", "--job-name=meshctl", f"--immediate={IMMEDIATE_S}", "--cpus-per-task=1",
    ]  # fmt: skip
    srun = ["srun", "--nodes=1", "--ntasks=1", "--quiet", f"--chdir={home}", *step]
    drop = [name for name in environment if _OF_A_JOB.fullmatch(name) and name not in _OF_THE_CLUSTER]
    shell = " ".join([sys.executable, "-I", "-m", "meshd.cli.node_shell"])
    # Names go through rsync's own protocol (-s): no shell and no list of words changes them.
    argv = ["rsync", "-a", "-s", "--mkpath", f"--partial-dir={PARTIAL}", f"--rsh={shell}"]
    if isinstance(target, str):  # root of a node chooses what comes: no setuid program, no device
        argv += ["--no-D", "--chmod=Fug-s"]
    argv += ["--delete"] if wanted.delete else []
    argv += ["--dry-run", "--itemize-changes"] if wanted.dry_run else []
    argv += ["--compress"] if wanted.compress else []
    argv += ["--info=progress2"] if wanted.progress else []
    argv += [f"--exclude={pattern}" for pattern in wanted.exclude]
    words = [_word(route, one) for one in (*sources, target)]
    unset = [word for name in sorted(drop) for word in ("-u", name)]
    return ["env", *unset, f"{SRUN}={shlex.join(srun)}", f"{PORTS}={ports}", *argv, "--", *words]


def _word(route: Route, one: str | Place) -> str:
    return local(one) if isinstance(one, str) else f"{route.node}:{one.path}"


class Slurm:
    """What is asked of Slurm.

    Args:
        run: runs its commands.
    """

    def __init__(self, run: Runner) -> None:
        self._run = run

    async def routes(self, job: str) -> list[Route]:
        """To all nodes of a running job.

        Raises:
            CliError: it does not run.
        """
        if not _JOB.fullmatch(job):
            raise CliError(f"{job!r} is no job", "take its number from squeue", code=ExitCode.USAGE, kind="usage")
        try:
            shown = await self._call("squeue", "--noheader", f"--jobs={job}", "--states=RUNNING", "--format=%A|%N")
        except CliError as error:
            if "Invalid job id" not in str(error):
                raise
            shown = ""  # it ended a while ago, or never was
        rows = [line.split("|") for line in shown.splitlines() if line.count("|") == 1]
        if not rows:
            raise CliError(f"job {job} does not run", f"see `squeue --jobs={job}`", kind="refused")
        if len(rows) > 1:
            raise CliError(
                f"{job} is an array of which {len(rows)} jobs run", f"name one of them: --job {job}_INDEX",
                kind="refused",
            )  # fmt: skip
        number, nodes = rows[0]
        names = (await self._call("scontrol", "show", "hostnames", nodes)).split()
        return [Route(name, int(number)) for name in names]

    async def route(self, node: str) -> Route | None:
        """To a node: by the caller's newest job there, else by a job of its own; None where Slurm has no such node."""
        mine = ("--me", "--states=RUNNING", f"--nodelist={node}", "--format=%A")
        try:
            jobs = [int(word) for word in (await self._call("squeue", "--noheader", *mine)).split()]
        except CliError:
            return None  # squeue refuses a node that does not exist
        if jobs:
            return Route(node, max(jobs))
        partitions = (await self._call("sinfo", "--noheader", f"--nodes={node}", "--format=%R")).split()
        return Route(node, 0, partitions[0]) if partitions else None

    async def ports(self) -> str:
        """SrunPortRange; "0-0" where it is not set."""
        shown = await self._call("scontrol", "show", "config")
        found = re.search(r"^SrunPortRange\s*=\s*(\d+-\d+)", shown, re.MULTILINE)
        return found[1] if found else "0-0"

    async def _call(self, *argv: str) -> str:
        try:
            return (await self._run(argv, timeout_s=SLURM_S)).stdout
        except (CommandError, CommandNotFound, CommandTimeout) as error:
            raise CliError(str(error), "see `scontrol ping`", kind="slurm") from error


def check_rsync() -> None:
    """Raises CliError: rsync is not there."""
    if shutil.which("rsync") is None:
        raise CliError("there is no program rsync", "apt-get install rsync", code=ExitCode.FAILED, kind="no_rsync")


def home() -> str:
    """The caller's home: paths on a node that begin without `/` start there, as with ssh."""
    return str(Path("~").expanduser())


def environment() -> Mapping[str, str]:
    """Of meshctl."""
    return os.environ


def node_of(places: Iterable[Place]) -> str:
    """The one node of all; "" for the nodes of a job.

    Raises:
        CliError: there are several.
    """
    names = {one.node for one in places}
    if len(names) != 1:
        raise CliError("all paths must be on one node", "run it once for each", code=ExitCode.USAGE, kind="usage")
    return names.pop()
