"""`meshctl invite`: makes machines that exist already nodes of a pool."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

import click

from meshd.api import endpoints
from meshd.api.schema import InviteAnswer, InviteRequest
from meshd.cli.batch import ask_each, report_failures
from meshd.cli.client import HeadClient
from meshd.cli.errors import CliError, ExitCode
from meshd.cli.invitation_file import Line, parse
from meshd.cli.invitation_ssh import visit
from meshd.cli.params.options import pool_option
from meshd.cli.params.values import duration
from meshd.cli.session import Session, say
from meshd.runtime.terminal import clean

EXAMPLES = """\b
Examples:
  meshctl invite --pool desk --name tower                      prints one command to paste there as root
  meshctl invite --pool desk --name tower --output tower.sh    a script to copy there and run as root
  meshctl invite --pool desk --name tower --ssh root@10.0.0.5  runs it there
  meshctl invite --pool desk --file machines.txt --output DIR  DIR/NAME.sh for each line of the file
\b
A line of the file:
  NAME [usd-per-hour=0.1] [ssh=root@10.0.0.5] [wake-mac=MAC] [wake-command='...'] [sleep-command='...']
"""


@dataclass(frozen=True, slots=True)
class Guest:
    """A machine to invite, and where it is reached: `ssh` is "" when its user brings the script there."""

    request: InviteRequest
    ssh: str


@click.command("invite", epilog=EXAMPLES)
@pool_option("The pool that it is for.")
@click.option("--name", metavar="NAME", help="What the machine is called.")
@click.option("--file", "file", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Several machines.")
@click.option("--usd-per-hour", type=float, default=0.0, help="What it costs.  [default: 0]")
@click.option("--expires", default="1h", show_default=True, callback=duration, help="How long it may be redeemed.")
@click.option("--output", metavar="FILE", help="Write the script there (0600); - prints it. With --file: a directory.")
@click.option("--ssh", metavar="USER@HOST", help="Run the script there, as root or with sudo.")
@click.option("--wake-mac", metavar="MAC", default="", help="A magic packet to this address wakes it.")
@click.option("--wake-command", metavar="WORDS", default="", help="A command on the head wakes it; no shell reads it.")
@click.option("--sleep-command", metavar="WORDS", default="", help="The command that it runs to sleep, as root.")
@click.pass_obj
def command(
    session: Session,
    *,
    pool: str | None,
    name: str | None,
    file: Path | None,
    usd_per_hour: float,
    expires: float,
    output: str | None,
    ssh: str | None,
    wake_mac: str,
    wake_command: str,
    sleep_command: str,
) -> None:
    """Invite a machine that exists already to be a node.

    Any Debian or Ubuntu machine with systemd will do. The invitation is for one machine, once, and expires. Whoever has
    it can join the cluster with it, so keep it like a password. `meshctl hosts` shows who has come, and
    `meshctl remove NAME` takes everything off the machine again.
    """
    if pool is None or (name is None) == (file is None) or (ssh is not None and (file or output)):
        raise click.UsageError("give --pool, and --name or --file; --ssh goes with --name alone")
    given = {
        "usd-per-hour": str(usd_per_hour), "wake-mac": wake_mac, "wake-command": wake_command,
        "sleep-command": sleep_command, "ssh": ssh or "",
    }  # fmt: skip
    lines = [Line(name)] if name is not None else parse(_read(file), str(file))
    guests = {line.name: _guest(line.name, pool, expires, {**given, **line.options}) for line in lines}

    async def ask(head: HeadClient, one: str) -> InviteAnswer:
        return await head.call(endpoints.INVITE, guests[one].request)

    done, failed = session.ask(lambda head: ask_each(head, list(guests), ask))
    if not done and len(failed) == 1:
        raise failed[0][1]
    visits = [(answer, guests[answer.name].ssh) for answer in done if guests[answer.name].ssh]
    for answer in done:
        if not guests[answer.name].ssh:
            _hand_out(answer, output, several=file is not None)
    ended = session.run(visit(visits)) if visits else []
    report_failures(failed, len(guests))
    if bad := [one.name for one in ended if one.code != 0]:
        code = ExitCode.PARTLY if len(bad) < len(guests) else ExitCode.FAILED
        raise CliError(f"{', '.join(bad)} did not become hosts", "the lines above say why", code=code, kind="script")


def _read(file: Path | None) -> str:
    try:
        return file.read_text("utf-8") if file is not None else ""
    except (OSError, ValueError) as error:
        raise CliError(f"{file} cannot be read: {error}", code=ExitCode.USAGE, kind="file") from None


def _guest(name: str, pool: str, expires_s: float, options: dict[str, str]) -> Guest:
    try:
        cost = float(options["usd-per-hour"])
        wake, sleep = (tuple(shlex.split(options[f"{kind}-command"])) for kind in ("wake", "sleep"))
    except ValueError as error:
        raise CliError(f"{name}: {error}", code=ExitCode.USAGE, kind="bad_request") from None
    if options["ssh"].startswith("-"):
        raise CliError(f"{name}: {options['ssh']} is no USER@HOST", code=ExitCode.USAGE, kind="bad_request")
    request = InviteRequest(
        pool=pool, name=name, usd_per_hour=cost, expires_s=expires_s, wake_mac=options["wake-mac"],
        wake_command=wake, sleep_command=sleep,
    )  # fmt: skip
    return Guest(request, options["ssh"])


def _hand_out(answer: InviteAnswer, output: str | None, *, several: bool) -> None:
    """Give the script, or the command, to the user."""
    until = f"{answer.expires_at:%Y-%m-%d %H:%M} UTC"
    if output == "-":
        click.echo(answer.script, nl=False)
        return
    if output is None:
        say(f"{answer.name} gets {answer.slot}. Until {until}, run as root on it, if it is on the tailnet already:")
        click.echo(clean(answer.tailnet_command))
        what = "log in to the tailnet too" if answer.logs_in else "do the same: meshd has no key to log it in with"
        say(f"A script from `--output {answer.name}.sh` can {what}.")
        return
    path = Path(output) / f"{answer.name}.sh" if several else Path(output)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # it may be readable by others
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as made:
            made.write(answer.script)
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}", "name another file", kind="file") from None
    say(f"{answer.name} gets {answer.slot}. Until {until}, copy {path} to it and run there as root: sh {path.name}")
