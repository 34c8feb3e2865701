"""The documents' fenced blocks: what each is, what a console block tells to type, and what it shows below that.

CONTRIBUTING.md (Blocks in documents) says how they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = tuple(
    str(path.relative_to(ROOT))
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "recipes/**/*.md")
    for path in sorted(ROOT.glob(pattern))
)

LANGUAGES = frozenset({"console", "ini", "json", "python", "sh", "text", "toml", "yaml", "{toctree}"})

NOT_RUN = {
    "needs the internet": "machines of the sandbox do not reach it",
    "runs the tests": "and so this one",
}
"""Why no test runs a console block, and what that means."""

KEYS = frozenset({"not run", "by", "output", "on"})
AN_EXAMPLE = "an example"
"""The `output` of a block that shows values of another cluster: only headings of tables are compared."""
PLACES = ("a node", "the clone")
"""What `on` may say. A block without it is typed on the head."""

SUDO = re.compile(r"^sudo |\| sudo ")
"""Where a command asks to be root."""

TESTS = ROOT / "tests"
_SHARE = re.compile(r'share\(\s*__file__, "([^"]+)"\)')
_FENCE = re.compile(r"^( *)```(.*)$")
_MARK = re.compile(r"^ *<!-- ([a-z ]+): (.+) -->$")
_PROMPT = re.compile(r"^([$#]) (.+)$")


@dataclass(frozen=True, slots=True)
class Typed:
    """A command, and what is shown below it.

    Attributes:
        place: "PAGE:LINE".
        root: it is behind `# `, or has `sudo` before a program.
        command: in one line.
        shown: lines of output.
    """

    place: str
    root: bool
    command: str
    shown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        page: path below the repository.
        line: of its fence, from 1.
        language: the word after the fence; "" where there is none.
        text: what is between the fences.
        marks: the comments right before it, `<!-- KEY: VALUE -->`.
    """

    page: str
    line: int
    language: str
    text: str
    marks: tuple[tuple[str, str], ...] = ()

    @property
    def place(self) -> str:
        """Where it begins."""
        return f"{self.page}:{self.line}"

    def mark(self, key: str) -> str:
        """What a comment says; "" where there is none with this key."""
        return dict(self.marks).get(key, "")

    @property
    def is_run(self) -> bool:
        """Whether a test has to type it."""
        return self.language == "console" and not self.mark("not run")

    @property
    def is_walked(self) -> bool:
        """Whether it is part of the walk through its page."""
        return self.is_run and not self.mark("by")

    def typed(self) -> Iterator[Typed]:
        r"""What it tells to type: lines behind `$ ` or `# `; one that ends with `\` goes on. All else is output."""
        lines = list(enumerate(self.text.splitlines(), self.line + 1))
        found: tuple[str, bool, str] | None = None
        shown: list[str] = []
        while lines:
            number, line = lines.pop(0)
            prompt = _PROMPT.match(line)
            if prompt is None:
                shown.append(line)
                continue
            if found is not None:
                yield Typed(*found, tuple(shown))
            command = prompt[2]
            while command.endswith("\\") and lines:
                command = command.removesuffix("\\") + re.sub(r"^(> )?\s*", "", lines.pop(0)[1])
            found = f"{self.page}:{number}", prompt[1] == "#" or bool(SUDO.search(command)), command
            shown = []
        if found is not None:
            yield Typed(*found, tuple(shown))


def blocks(text: str, page: str = "") -> list[Block]:
    """All fenced blocks of a page. Raises ValueError where a fence is not closed."""
    found: list[Block] = []
    marks: list[tuple[str, str]] = []
    lines = list(enumerate(text.splitlines(), 1))
    while lines:
        number, line = lines.pop(0)
        if mark := _MARK.match(line):
            marks.append((mark[1], mark[2]))
            continue
        if fence := _FENCE.match(line):
            indent, inner = len(fence[1]), []
            while lines and lines[0][1].strip() != "```":
                inner.append(lines.pop(0)[1][indent:])
            if not lines:
                raise ValueError(f"{page}:{number}: the block has no end")
            lines.pop(0)
            body = "".join(f"{one}\n" for one in inner)
            found.append(Block(page, number, fence[2].strip(), body, tuple(marks)))
        marks = []
    return found


def page(name: str) -> list[Block]:
    """All fenced blocks of a page of the repository."""
    return blocks((ROOT / name).read_text("utf-8"), name)


def share(test: str, name: str) -> list[Block]:
    """The blocks of a page that say `by: TEST`, in order.

    Args:
        test: the file of the test, `__file__`.
        name: the page's, written out: `shares` looks for it.
    """
    own = str(Path(test).resolve().relative_to(ROOT))
    return [block for block in page(name) if block.mark("by") == own]


@cache
def shares() -> frozenset[tuple[str, str]]:
    """All files of tests that ask for their share of a page, each with the page."""
    files = [path for path in TESTS.rglob("*.py") if path.name != Path(__file__).name]
    return frozenset(
        (str(path.relative_to(ROOT)), name) for path in files for name in _SHARE.findall(path.read_text("utf-8"))
    )


def everything() -> list[Block]:
    """All fenced blocks of all pages."""
    return [block for name in PAGES for block in page(name)]


def fault(block: Block, typed: Typed, status: int, output: str) -> str:
    """What is wrong with how a command ended, and with what it printed; "" when nothing is.

    It must end well, unless the page shows `error:` below it.
    """
    fails = any(line.startswith("error:") for line in typed.shown)
    wrong = "" if (status != 0) is fails else f"exit status {status}"
    return wrong or differs(typed.shown, output, example=block.mark("output") == AN_EXAMPLE)


def told(typed: Typed, command: str, wrong: str, output: str) -> str:
    """For people: PAGE:LINE, what was typed, what is wrong, and both outputs."""
    shown = "\n".join(typed.shown)
    return f"{typed.place}: {command}: {wrong}\n{output}\n--- the page shows:\n{shown}"


def differs(shown: tuple[str, ...], output: str, *, example: bool = False) -> str:
    """Where an output differs from what a page shows; "" where it does not.

    A line `...` stands for any number of lines, `...` within a line for any text, a blank for any number of them, and a
    number for any number.

    Args:
        shown: the page's lines.
        output: what the command printed.
        example: the page shows values of another cluster: the headings of its tables are compared, as words.
    """
    lines = [" ".join(line.split()) for line in output.strip().splitlines()]
    wanted = [" ".join(line.split()) for line in "\n".join(shown).strip().splitlines()]
    if example:
        headings = [line for line in wanted if re.fullmatch(r"[A-Z][A-Z/ -]+[A-Z]", line)]
        return next((f"no heading {line!r}" for line in headings if line not in lines), "")
    if not wanted:
        return ""
    pattern = "".join(r"(?:.*\n)*" if line == "..." else f"{_within(line)}\n" for line in wanted)
    text = "".join(f"{line}\n" for line in lines)
    return "" if re.fullmatch(pattern, text) else "the output is another one than the page shows"


def _within(line: str) -> str:
    return ".*".join(re.sub(r"\d+", r"\\d+", re.escape(part)) for part in line.split("..."))
