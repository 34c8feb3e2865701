"""Types what a document says on this machine: for what needs no head, or makes one."""

from __future__ import annotations

import os
import shutil
import subprocess
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
        ran = subprocess.run(
            ["bash", "-c", _TYPED.format(command=command)], input=stdin, capture_output=True, text=True, check=False,
            env={**os.environ, **self.env, "TYPED_CWD": str(self._cwd)}, timeout=self.timeout_s,
        )  # fmt: skip
        wrong = documents.fault(block, typed, ran.returncode, ran.stdout)
        assert not wrong, documents.told(typed, command, wrong, f"{ran.stdout}{ran.stderr}")
        return ran.stdout


def copy_of_checkout(target: Path) -> Path:
    """What is in the checkout, without what is built there; `target`."""
    argv = ["git", "-C", str(documents.ROOT), "ls-files", "-z"]
    names = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(documents.ROOT / name, target / name)
    return target
