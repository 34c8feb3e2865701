"""Makes the man pages out of what there is: meshctl's --help texts and docs/configuration.md.

    python deploy/man/pages.py DIRECTORY

writes man1/meshctl.1, man5/meshd.toml.5 and man8/meshd.8 below DIRECTORY. The installer does it.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a program, Python looks beside it only

from deploy.man import roff  # noqa: E402
from meshd import __version__  # noqa: E402
from meshd.cli.errors import EXIT_CODES_HELP  # noqa: E402
from meshd.cli.main import cli  # noqa: E402


def meshctl() -> Iterator[str]:
    """The page of meshctl, section 1."""
    context = click.Context(cli, info_name="meshctl")
    yield roff.header("meshctl", 1, __version__, "User Commands")
    yield from (roff.section("Name"), "meshctl \\- rent GPU machines and use them as nodes of a Slurm cluster")
    yield from (roff.section("Synopsis"), "\\fBmeshctl\\fR [\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGS\\fR]...")
    yield roff.section("Description")
    yield from roff.paragraphs(inspect.cleandoc(cli.help or ""))
    yield roff.section("Options")
    yield from _options(cli, context)
    yield roff.section("Commands")
    for name, command, inner in _commands(cli, context):
        yield from _command(name, command, inner)
    yield roff.section("Exit status")
    for line in EXIT_CODES_HELP.splitlines():
        if found := re.match(r"\s+(\d+)\s+(.*)", line):
            yield from roff.entry(found[1], roff.escaped(found[2]))
    yield from _see_also("meshd.toml(5)", "meshd(8)", "sinfo(1)", "scontrol(1)")


Commands = Iterator[tuple[str, click.Command, click.Context]]


def _commands(group: click.Group, context: click.Context, before: str = "") -> Commands:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        yield f"{before}{name}", command, inner
        if isinstance(command, click.Group):
            yield from _commands(command, inner, f"{name} ")


def _command(name: str, command: click.Command, context: click.Context) -> Iterator[str]:
    arguments = " ".join(command.collect_usage_pieces(context))
    yield f".SS {roff.escaped(f'{name} {arguments}'.strip())}"
    yield from roff.paragraphs(inspect.cleandoc(command.help or ""))
    yield from _options(command, context)
    examples = (command.epilog or "").replace(EXIT_CODES_HELP, "").strip()
    if examples:
        yield from roff.paragraphs(inspect.cleandoc(examples))


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1] and "--help" not in parameter.opts:
            yield from roff.entry(roff.escaped(record[0]), roff.escaped(record[1]))


def settings() -> Iterator[str]:
    """The page of meshd.toml, section 5."""
    yield roff.header("meshd.toml", 5, __version__, "File Formats")
    yield from (roff.section("Name"), "meshd.toml \\- settings of meshd")
    yield from (roff.section("Description"),)
    for kind, text in _blocks((ROOT / "docs/configuration.md").read_text("utf-8")):
        match kind:
            case "heading":
                yield f".SH {roff.escaped(text)}"
            case "row":
                yield from _setting(text)
            case _:
                yield from (".PP", roff.inline(text))
    yield from _see_also("meshctl(1)", "meshd(8)", "slurm.conf(5)")


def _setting(row: str) -> Iterator[str]:
    cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
    name, default, meaning, *reload = cells
    applies = "" if not reload else " Put in force by a reload." if reload[0] == "yes" else " Needs a restart."
    yield from roff.entry(
        roff.escaped(name.strip("`")), f"{roff.inline(meaning)}. Default: {roff.inline(default)}.{applies}"
    )


def _blocks(markdown: str) -> Iterator[tuple[str, str]]:
    """The document's headings, table rows of settings and paragraphs, in order; without its title."""
    _, _, body = markdown.partition("\n")
    for block in body.strip("\n").split("\n\n"):
        if block.startswith("#"):
            yield "heading", block.lstrip("# ")
        elif block.startswith("|"):
            yield from (("row", line) for line in block.splitlines() if line.startswith("| `"))
        else:
            yield "text", " ".join(block.split())


def _see_also(*pages: str) -> Iterator[str]:
    yield roff.section("See also")
    yield ", ".join(re.sub(r"^(.*)(\(\d\))$", lambda m: f"\\fB{roff.escaped(m[1])}\\fR{m[2]}", page) for page in pages)


def write(directory: Path) -> list[Path]:
    """Write all pages below a directory, such as /usr/local/share/man; returns their paths."""
    daemon = (ROOT / "deploy/man/meshd.8").read_text("utf-8").replace("@VERSION@", __version__)
    pages = {
        "man1/meshctl.1": "\n".join(meshctl()) + "\n",
        "man5/meshd.toml.5": "\n".join(settings()) + "\n",
        "man8/meshd.8": daemon,
    }
    for name, text in pages.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        path.chmod(0o644)
    return [directory / name for name in pages]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: pages.py DIRECTORY")
    write(Path(sys.argv[1]))
