"""Every command that meshd tells people to type exists, with its options and arguments, and those that look do run."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from meshd.api.endpoints import DOCTOR, PRICES
from meshd.api.schema import DoctorView, PricesView
from meshd.cli.main import cli
from tests.meshctl_words import FILLER, fault_of_meshctl, meant
from tests.property.sim import START
from tests.unit.api.sim_head import SimHead
from tests.unit.cli import conftest as _cli
from tests.unit.cli.conftest import Meshctl

socket_path, head, served, meshctl, quiet = _cli.socket_path, _cli.head, _cli.served, _cli.meshctl, _cli.quiet

ROOT = Path(__file__).resolve().parents[2]
UNITS = {"meshd-node", "meshd-host", "meshd-slurmd", "slurmd",
         "meshd", "meshd.service", "munge", "slurmctld", "slurmctld.service", "tailscaled", "meshd-slurmctld.service",
         "slurmdbd", "mariadb", "meshd-mlflow", "nfs-server",
         *(path.name for path in (ROOT / "systemd").glob("*.*")),
         *(path.stem for path in (ROOT / "systemd").glob("*.service"))}  # fmt: skip

WORD = r"[\w./:=%+*'\[\]-]+"
SHAPES = {
    "systemctl": r"(start|stop|restart|reload|status|edit|(en|dis)able --now|is-active|daemon-reload) ?(?P<units>.*)",
    "journalctl": r"(-t \w+|-u (?P<units>\S+)( -u \S+)*)( -p \w+)?",
    "scontrol": rf"(ping|reconfigure|show \w+( {WORD})?|(update|delete) \w+=\S*( \w+=\S*)*)",
    "squeue": rf"(-\w {WORD}|--jobs={WORD}|--nodelist={WORD})?",
    "sinfo": "(-R)?",
    "sacctmgr": rf"(show \w+|add user|-i add cluster {WORD})",
    "scancel": WORD,
    "tailscale": rf"(status|netcheck|ip -4|ping {WORD}|up( --[a-z-]+(={WORD})?)*)",
    "chmod": rf"0[0-7]{{3}} {WORD}",
    "chown": rf"\w+ {WORD}",
    "ls": rf"-\w+( {WORD})+",
    "rm": WORD,
    "rmdir": WORD,
    "usermod": rf"-aG {WORD} {WORD}",
    "ssh": WORD,
    "srun": rf"(-w {WORD}|--jobid={WORD} --overlap) --pty bash -l|--container(-image)?",
    "getent": r"(passwd|group)( \w+)?",
    "man": r"(meshctl|meshd|meshd\.toml)",
    "munge": r"-n \| unmunge",
    "apt-get": rf"install {WORD}",
    "ufw": rf"allow in on {WORD} to any port \d+ proto tcp",
    "firewall-cmd": rf"--permanent --zone=trusted --add-interface={WORD}; firewall-cmd --reload",
    "headscale": r"preauthkeys expire",
    "nvidia-smi": r"(-L)?",
    "dmesg": "",
    "/opt/meshd/venv/bin/pip": r"install '?[\w\[\]]+'?",
    "deploy/head/install": "",
}
"""Programs that are not meshd's own, and how their arguments look. A new one in a message belongs here."""

NO_PROGRAMS = re.compile(r"[A-Za-z0-9_.:/*{}-]+|Include FILE|node\.expiry: 0|--\w+ NODE")
"""What stands between backticks and is no command: names of settings, credentials and options."""


@functools.cache
def texts() -> tuple[tuple[str, str], ...]:
    """Every text in the sources that is no docstring, with its place; what it fills in is FILLER."""
    return tuple(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    files = [*ROOT.glob("meshd/**/*.py"), *ROOT.glob("providers/**/*.py"), *ROOT.glob("deploy/node/**/*.py")]
    for file in sorted(files):
        name, nodes = file.relative_to(ROOT), list(ast.walk(ast.parse(file.read_text("utf-8"))))
        inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        inner |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(p.value) if isinstance(p, ast.Constant) else FILLER for p in node.values)
                yield f"{name}:{node.lineno}", text
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
                yield f"{name}:{node.lineno}", re.sub(r"\{\w*\}", FILLER, node.value)


def commands() -> dict[str, str]:
    """What stands between backticks, with the place of one text that has it."""
    printed = ((place, text) for place, text in texts() if not text.startswith("# Written by meshd"))
    return {code: place for place, text in printed for code in re.findall(r"`([^`]+)`", text)}


CURES = commands()


def fault_of(code: str) -> str:
    """Why nobody can type it; "" when it is fine, or no command."""
    try:
        words = shlex.split(code)
    except ValueError as error:
        return str(error)
    if words[0] == "sudo":
        words, code = words[1:], code.removeprefix("sudo ")
    program, arguments = words[0], words[1:]
    if FILLER in {program, *arguments[:1]} and program != "meshctl":
        return ""  # what failed, in an error's text
    if program == "meshctl":
        return fault_of_meshctl(meant(arguments))
    if program in SHAPES:
        match = re.fullmatch(SHAPES[program], code[len(program) :].strip())
        if match is None:
            return "its arguments have another shape"
        units = (match.groupdict().get("units") or "").split()
        return ", ".join(unit for unit in units if unit not in UNITS and unit != FILLER)
    return "" if NO_PROGRAMS.fullmatch(code) or code.startswith("-") else "it is no program that is known here"


def test_there_are_cures() -> None:
    assert len([code for code in CURES if code.startswith("meshctl")]) > 30
    assert len([code for code in CURES if code.startswith("systemctl")]) > 10


@pytest.mark.parametrize("code", sorted(CURES))
def test_a_command_that_is_printed_can_be_typed(code: str) -> None:
    assert fault_of(code) == "", f"{CURES[code]}: `{code}`"


@pytest.mark.parametrize(
    "code",
    ["meshctl remove", "meshctl rotate-munge-key", "meshctl scale 7 --gpus 7", "meshctl nodes --all", "meshctl config",
     "systemctl bounce meshd", "systemctl restart mesh", "scontrol fix it", "frobnicate now", "chmod 0600"],
)  # fmt: skip
def test_what_nobody_can_type_is_found(code: str) -> None:
    assert fault_of(code)


def test_restart_and_reload_are_told_as_the_commands_that_do_it() -> None:
    wrong = [
        f"{place}: {text}"
        for place, text in texts()
        if re.search(r"(?<!systemctl )\b(restart|reload) meshd\b", text) and not place.startswith("meshd/cli/commands/")
    ]
    assert wrong == []


def in_documents() -> dict[str, str]:
    """Commands between backticks in the documents, without `sudo` and what a shell makes of them."""
    found = {}
    for file in [*ROOT.glob("docs/*.md"), ROOT / "README.md"]:
        for code in re.findall(r"(?<!`)`(?:sudo )?([a-z][^`\n]*)`(?!`)", file.read_text("utf-8")):
            first = re.split(r" *(?:[|;&]|&&|\.\.\.) *", code)[0].strip()
            if first.split()[0] in {"systemctl", "journalctl"} and " " in first:
                found[first] = file.name
    return found


@pytest.mark.parametrize("code", sorted(in_documents()))
def test_a_command_of_systemd_in_the_documents_can_be_typed(code: str) -> None:
    assert fault_of(code) == "", f"{in_documents()[code]}: `{code}`"


def test_what_asks_before_it_changes_things_can_show_them_first() -> None:
    """The error without a terminal says: look at it with --dry-run, then add --yes."""
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        options = {option for each in command.params for option in each.opts}
        assert "--yes" not in options or "--dry-run" in options, name


LOOKS = ("status", "nodes", "events", "doctor", "offers", "plan", "prices show", "version", "help", "config check")


def test_the_commands_that_look_do_run(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    """With names that exist in the place of those that a message fills in."""
    head.grow(1)
    head.frozen = True
    head.give(DOCTOR, DoctorView())
    head.give(PRICES, PricesView(at=START, stale_after_s=86400))
    ran = 0
    for code in CURES:
        words = meant(shlex.split(code)[1:]) if code.startswith("meshctl ") else []
        if " ".join(words).startswith(LOOKS) and words != ["help", "COMMAND"]:
            follows = {"--follow", "-f"} & {*words}
            named = ["a100-1" if word in {FILLER, "NAME", "SLOT", "MACHINE"} else word for word in words]
            if not follows:
                found = meshctl(*named)
                assert found.code in (0, 1), (code, found)
                assert "Usage:" not in found.err, (code, found)
                ran += 1
    assert ran >= 6
