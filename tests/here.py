"""Types what a document says on this machine: for what needs no head, or makes one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import documents
from tests.documents import Block, Typed

# A shell of its own for each command; the directory goes on from one to the next. The tests are root where they must.
_TYPED = """\
trap 'status=$?; pwd >"$TYPED_CWD"; exit $status' EXIT
cd "$(cat "$TYPED_CWD")"
sudo() {{ "$@"; }}
exec 2>&1
{command}
"""


END_S = 100.0
"""A demonstration that is asked to end removes what it made first."""


@dataclass
class Here:
    """Somebody who types on this machine.

    Attributes:
        state: a folder of its own, which the test empties.
        folder: where the first command is typed.
        words: what stands in the page, with what is typed instead; the first that fits.
        env: variables besides those of the test.
        timeout_s: for each command.
    """

    state: Path
    folder: Path = documents.ROOT
    words: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        """Begin in the folder."""
        self._cwd.write_text(f"{self.folder}\n")

    @property
    def _cwd(self) -> Path:
        return self.state / "typed-cwd"

    def block(self, block: Block, commands: Sequence[Typed] = ()) -> list[str]:
        """Type a block, or some of its commands; what each printed.

        Raises:
            AssertionError: a command did not end as the page says, or has printed something else; with PAGE:LINE.
        """
        return [self.type(block, typed) for typed in commands or block.typed()]

    def type(self, block: Block, typed: Typed, stdin: str = "") -> str:
        """Type one command of a block; what it printed."""
        command = typed.command
        for word, other in self.words.items():
            command = command.replace(word, other)
        status, output = self._run(_TYPED.format(command=command), stdin)
        wrong = documents.fault(block, typed, status, output)
        assert not wrong, documents.told(typed, command, wrong, output)
        return output

    def _run(self, script: str, stdin: str) -> tuple[int, str]:
        # Files, not pipes: what a command leaves running may hold them.
        with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as printed:
            given.write(stdin)
            given.seek(0)
            process = subprocess.Popen(
                ["bash", "-c", script], stdin=given, stdout=printed, stderr=printed, process_group=0,
                env={**os.environ, **self.env, "TYPED_CWD": str(self._cwd)},
            )  # fmt: skip
            try:
                status = process.wait(self.timeout_s)
            finally:  # also when the tests are stopped
                self._end(process)
            printed.seek(0)
            return status, printed.read()

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_S)


def copy_of_checkout(target: Path) -> Path:
    """What is in the checkout, without what is built there; `target`."""
    argv = ["git", "-C", str(documents.ROOT), "ls-files", "-z"]
    names = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(documents.ROOT / name, target / name)
    return target
