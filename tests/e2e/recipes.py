"""Runs a recipe as its README says: a user types the commands of its `console` blocks on the head, one by one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from deploy.sandbox import proc
from tests.documents import blocks
from tests.e2e.lab import PATIENCE_S, Lab

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
UNFINISHED = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED"}
SUBMITTED = re.compile(r"^Submitted batch job (\d+)$", re.M)

# A login shell of its own for each command; directory and variables go on from one to the next.
TYPED = """\
state=/tmp/typed-$(id -un)
if [ -e "$state" ]; then . "$state"; cd "$PWD"; fi
trap 'status=$?; export -p >"$state"; exit $status' EXIT
{command}
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a command.

    Attributes:
        command: as the README has it.
        output: standard output, then standard error.
        jobs: the ids of the jobs that it submitted; all of them ended well.
    """

    command: str
    output: str
    jobs: tuple[str, ...] = ()


@dataclass
class Walk:
    """All that a user did on the head, in order."""

    ran: list[Ran] = field(default_factory=list)

    def output(self, command: str) -> str:
        """What the last command that begins so has printed."""
        return next(one.output for one in reversed(self.ran) if one.command.startswith(command))

    @property
    def jobs(self) -> list[str]:
        """All jobs."""
        return [job for one in self.ran for job in one.jobs]


def commands(readme: str) -> list[str]:
    """What a README's `console` blocks tell to type, in order."""
    return [typed.command for block in blocks(readme) if block.is_run for typed in block.typed()]


class Person:
    """A user of the head.

    Args:
        lab: the cluster.
        user: has an account there.
    """

    def __init__(self, lab: Lab, user: str) -> None:
        self.lab = lab
        self._user = user

    async def type(self, command: str, *, timeout_s: float = PATIENCE_S, check: bool = True) -> Ran:
        """Type one command. Raises AssertionError where it fails and `check` is set."""
        script = TYPED.format(command=command)
        argv = ["runuser", "-l", self._user, "-s", "/bin/bash", "-c", script]
        result = await self.lab.head.run(*argv, timeout_s=timeout_s, check=False)
        output = _text(result)
        if check and result.returncode != 0:
            raise AssertionError(f"{command}: {result.returncode}\n{output}\n{await self.lab.evidence()}")
        return Ran(command, output, tuple(SUBMITTED.findall(output)))

    async def follow(
        self,
        name: str = "",
        *,
        meanwhile: Callable[[str], Awaitable[None]] | None = None,
        instead: Callable[[str], str] = lambda command: command,
        timeout_s: float = PATIENCE_S,
    ) -> Walk:
        """Do what a README says, waiting after each command for the jobs that it submitted.

        Args:
            name: of the recipe; "" for the README of all of them.
            meanwhile: is called with the id of each job while that waits or runs.
            instead: changes a command before it is typed.
            timeout_s: for each command, and for each job.

        Raises:
            AssertionError: a command failed, or a job did not end well; with its output.
        """
        walk = Walk()
        for command in commands((RECIPES / name / "README.md").read_text("utf-8")):
            walk.ran.append(await self.submit(instead(command), meanwhile=meanwhile, timeout_s=timeout_s))
        return walk

    async def submit(
        self, command: str, *, meanwhile: Callable[[str], Awaitable[None]] | None = None, timeout_s: float = PATIENCE_S
    ) -> Ran:
        """Type one command, and wait until the jobs that it submitted have ended well."""
        ran = await self.type(command, timeout_s=timeout_s)
        for job in ran.jobs:
            if meanwhile is not None:
                await meanwhile(job)
            await self.ended(job, timeout_s=timeout_s)
        return ran

    async def ended(self, job: str, *, timeout_s: float = PATIENCE_S) -> dict[str, str]:
        """Wait until a job has ended, which must be well; what Slurm says of it then."""

        async def look() -> dict[str, str] | None:
            seen = await self.lab.job(job)
            return None if seen["JobState"] in UNFINISHED else seen

        seen = await self.lab.until(look, f"job {job} ends", timeout_s)
        if seen["JobState"] != "COMPLETED":
            text = await self.type(f"tail -n 60 {shlex.quote(seen.get('StdOut', ''))}", check=False)
            raise AssertionError(f"job {job}: {seen}\n{text.output}\n{await self.lab.evidence()}")
        return seen


def _text(result: proc.Result) -> str:
    return "\n".join(filter(None, [result.text, result.stderr.decode(errors="replace").strip()]))
