"""Runs a document as it says: somebody types the commands of its `console` blocks on the head, one by one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy.sandbox import proc
from deploy.sandbox.headmachine import SOURCE
from tests import documents
from tests.documents import SUDO, Block, Typed, blocks
from tests.e2e.lab import PATIENCE_S, Lab
from tests.meshctl_words import asks, programs

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
UNFINISHED = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED"}
SUBMITTED = re.compile(r"^Submitted batch job (\d+)$", re.M)

# A login shell of its own for each command; directory and variables go on from one to the next. The head has neither
# sudo nor an editor: root types what has sudo before a program, in the other's directory, and an editor adds EDITS.
TYPED = """\
state=/tmp/typed-{who}
if [ -e "$state" ]; then
    if [ {who} = "$(id -un)" ]; then . "$state"; cd "$PWD"; else cd "$(cat "$state-cwd")"; fi
else
    cd ~{who}
fi
if [ {who} = "$(id -un)" ]; then
    trap 'status=$?; pwd >"$state-cwd"; declare -p | grep -v "^declare -[a-zA-Z]*r" >"$state"; exit $status' EXIT
fi
sudo() {{ "$@"; }}
editor() {{ cat {edits} >>"$1"; }}
exec 2>&1
{command}
"""
EDITS = "/run/typed-edits"
ANSWERS = b"y\n" * 3
COLUMNS = 250
"""Of the terminal of a command that asks; no line of meshctl's is longer."""
STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\x04|\^D\x08*")
SPINNER = re.compile(r"^[\u2800-\u28ff].*\n", re.M)


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a command.

    Attributes:
        command: as the README has it.
        output: standard output and standard error as they came.
        status: the exit status.
        jobs: the ids of the jobs that it submitted; all of them ended well.
    """

    command: str
    output: str
    jobs: tuple[str, ...] = ()
    status: int = 0


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
    return [typed.command for block in blocks(readme) if block.is_walked for typed in block.typed()]


class Person:
    """A user of the head.

    Args:
        lab: the cluster.
        user: has an account there.
    """

    def __init__(self, lab: Lab, user: str) -> None:
        self.lab = lab
        self._user = user

    async def type(
        self,
        command: str,
        *,
        timeout_s: float = PATIENCE_S,
        check: bool = True,
        root: bool = False,
        terminal: bool = False,
    ) -> Ran:
        """Type one command; a question of meshctl is answered with yes.

        Args:
            command: in one line.
            timeout_s: for it.
            check: raise AssertionError where it fails.
            root: it is behind the prompt of root, or has `sudo` before a program.
            terminal: its output is as on a terminal. What asks has one in any case.
        """
        sudo = bool(SUDO.search(command))
        line, stdin = command, b""
        may_ask = any(words[0] == "meshctl" and asks(words[1:]) for words in programs(command))
        if may_ask or terminal:  # without a terminal meshctl cannot ask, and fails
            inner = f"stty -echo cols {COLUMNS}; {command.removeprefix('sudo ')}"
            line = f"script -qec {shlex.quote(inner)} /dev/null"
            stdin = ANSWERS if may_ask else b""
        who = "root" if root and not sudo else self._user
        script = TYPED.format(command=line, who=who, edits=EDITS)
        argv = ["runuser", "-l", "root" if root else self._user, "-s", "/bin/bash", "-c", script]
        result = await self.lab.head.run(*argv, stdin=stdin, timeout_s=timeout_s, check=False)
        output = SPINNER.sub("", STEERING.sub("", _text(result)))
        if check and result.returncode != 0:
            raise AssertionError(f"{command}: {result.returncode}\n{output}\n{await self.lab.evidence()}")
        return Ran(command, output, tuple(SUBMITTED.findall(output)), result.returncode)

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

    async def read(
        self,
        page: str,
        *,
        instead: Callable[[str], str] = lambda command: command,
        first: Callable[[str], Awaitable[None]] | None = None,
        node: Callable[[], Awaitable[str]] | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> Walk:
        """Do what a page of the documents says, and compare the output with what it shows.

        A command must end well, unless the page shows `error:` below it. The jobs of a block end before the next.

        Args:
            page: its path below the repository.
            instead: changes a command before it is typed.
            first: is called with each command before it is typed.
            node: tells the machine on which blocks with `on: a node` are typed.
            timeout_s: for each command, and for each job.

        Raises:
            AssertionError: a command did not end as shown, or has printed something else; with PAGE:LINE.
        """
        walk = Walk()
        for block in documents.page(page):
            if block.is_walked:
                walk.ran += await self.block(block, instead=instead, first=first, node=node, timeout_s=timeout_s)
        return walk

    async def block(
        self,
        block: Block,
        commands: Sequence[Typed] = (),
        *,
        instead: Callable[[str], str] = lambda command: command,
        first: Callable[[str], Awaitable[None]] | None = None,
        node: Callable[[], Awaitable[str]] | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> list[Ran]:
        """Type a block, or some of its commands, as `read` does a page."""
        ran: list[Ran] = []
        if block.mark("on") == "the clone":
            await self.type(f"cd {SOURCE}")
        for typed in commands or block.typed():
            command = instead(typed.command)
            if first is not None:
                await first(command)
            if block.mark("on") == "a node":
                assert node is not None, f"{typed.place}: there is no node"
                one = Ran(command, await self.lab.inside(await node(), "sh", "-c", command))
            else:
                one = await self.type(
                    command, timeout_s=timeout_s, check=False, root=typed.root, terminal=bool(typed.shown)
                )
            if wrong := documents.fault(block, typed, one.status, one.output):
                told = documents.told(typed, command, wrong, one.output)
                raise AssertionError(f"{await self.lab.evidence()}\n---\n{told}")
            ran.append(one)
        for job in [job for one in ran for job in one.jobs]:
            await self.ended(job, timeout_s=timeout_s)
        if block.mark("on") == "the clone":
            await self.type("cd")
        return ran

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


def instead(words: Mapping[str, str]) -> Callable[[str], str]:
    """Changes a page's words before they are typed, in the table's order."""

    def changed(command: str) -> str:
        for word, other in words.items():
            command = command.replace(word, other)
        return command

    return changed


def _text(result: proc.Result) -> str:
    return "\n".join(filter(None, [result.text, result.stderr.decode(errors="replace").strip()]))
