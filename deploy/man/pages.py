"""Makes the man pages meshctl(1) from the --help texts, meshd(8), and meshd.toml(5) from docs/configuration.md.

    python deploy/man/pages.py DIRECTORY

writes man1/meshctl.1, man5/meshd.toml.5 and man8/meshd.8 below DIRECTORY. The installer does it. click-man would leave
out the examples and the exit codes, and knows no section 5.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # a program finds only modules beside it

from meshd import __version__  # noqa: E402
from meshd.cli.errors import EXIT_CODES_HELP  # noqa: E402
from meshd.cli.main import cli  # noqa: E402

SEE_ALSO = {
    "meshctl": r"\fBmeshd.toml\fR(5), \fBmeshd\fR(8), \fBsinfo\fR(1), \fBscontrol\fR(1)",
    "meshd.toml": r"\fBmeshctl\fR(1), \fBmeshd\fR(8), \fBslurm.conf\fR(5)",
}


def escaped(text: str) -> str:
    """Text that man prints as it is."""
    return re.sub(r"^([.'])", r"\\&\1", text.replace("\\", "\\e").replace("-", "\\-"), flags=re.M)


def inline(markdown: str) -> str:
    """A line of Markdown: code and strong words in bold, links as their words."""
    line = escaped(re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", markdown))
    line = re.sub(r"`([^`]+)`|\*\*([^*]+)\*\*", lambda found: f"\\fB{found[1] or found[2]}\\fR", line)
    return f"\\&{line}" if line.startswith((".", "'")) else line


def _entry(term: str, meaning: str) -> str:
    return f".TP\n\\fB{escaped(term)}\\fR\n{meaning}"


def _paragraphs(text: str) -> Iterator[str]:
    """Help text of click: paragraphs, and blocks after a backspace, which keep their lines."""
    for block in inspect.cleandoc(text).strip("\n").split("\n\n"):
        if block.lstrip().startswith("\b"):
            yield f".PP\n.nf\n.RS 4\n{escaped(block.lstrip().removeprefix(chr(8)).strip(chr(10)))}\n.RE\n.fi"
        else:
            yield f".PP\n{escaped(' '.join(block.split()))}"


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record and record[1] and "--help" not in parameter.opts:
            yield _entry(record[0], escaped(record[1]))


def _commands(group: click.Group, context: click.Context, before: str = "") -> Iterator[str]:
    """A subsection for each command and subcommand."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        yield f".SS {escaped(' '.join([f'{before}{name}', *command.collect_usage_pieces(inner)]))}"
        yield from _paragraphs(command.help or "")
        yield from _options(command, inner)
        yield from _paragraphs(command.epilog or "") if command.epilog else ()
        if isinstance(command, click.Group):
            yield from _commands(command, inner, f"{name} ")


def meshctl() -> Iterator[str]:
    """The body of the page meshctl in section 1."""
    context = click.Context(cli, info_name="meshctl")
    yield ".SH NAME\nmeshctl \\- rent GPU machines and use them as nodes of a Slurm cluster"
    yield ".SH SYNOPSIS\n\\fBmeshctl\\fR [\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGS\\fR]...\n.SH DESCRIPTION"
    yield from _paragraphs(cli.help or "")
    yield ".SH OPTIONS"
    yield from _options(cli, context)
    yield ".SH COMMANDS"
    yield from _commands(cli, context)
    yield ".SH EXIT STATUS"
    yield from (_entry(*found) for found in re.findall(r"^ +(\d+) +(.*)$", EXIT_CODES_HELP, re.M))


def settings() -> Iterator[str]:
    """The body of the page meshd.toml in section 5: the headings, paragraphs and tables of docs/configuration.md."""
    yield ".SH NAME\nmeshd.toml \\- settings of meshd\n.SH DESCRIPTION"
    _, _, body = (ROOT / "docs/configuration.md").read_text("utf-8").partition("\n")
    for block in body.strip("\n").split("\n\n"):
        if block.startswith("#"):
            yield f".SH {escaped(block.lstrip('# '))}"
        elif block.startswith("|"):
            yield from (_setting(line) for line in block.splitlines() if line.startswith("| `"))
        else:
            yield f".PP\n{inline(' '.join(block.split()))}"


def _setting(row: str) -> str:
    cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
    name, default, meaning, *reload = cells
    applies = "" if not reload else " Applied by a reload." if reload[0] == "yes" else " Needs a restart."
    return _entry(name.strip("`"), f"{inline(meaning)}. Default: {inline(default)}.{applies}")


def _page(name: str, section: int, manual: str, body: Iterator[str]) -> str:
    header = f'.TH {name.upper()} {section} "" "meshd {__version__}" "{manual}"'
    return "\n".join([header, *body, f".SH SEE ALSO\n{SEE_ALSO[name]}"]) + "\n"


def write(directory: Path) -> list[Path]:
    """Write all pages below a directory, such as /usr/local/share/man; returns their paths."""
    daemon = (ROOT / "deploy/man/meshd.8").read_text("utf-8").replace("@VERSION@", __version__)
    pages = {
        "man1/meshctl.1": _page("meshctl", 1, "User Commands", meshctl()),
        "man5/meshd.toml.5": _page("meshd.toml", 5, "File Formats", settings()),
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
