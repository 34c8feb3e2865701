"""The run of a command: finds the daemon, asks it, prints, asks the user."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tomllib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from pydantic import BaseModel

from meshd import standard_paths
from meshd.cli.errors import CliError, ExitCode, QuietError, interrupted
from meshd.runtime.terminal import clean, json_clean

if TYPE_CHECKING:
    from meshd.cli.client import HeadClient

T = TypeVar("T")
D = TypeVar("D", bound=BaseModel)

JSON_WANTED = "meshd.json"
"""Key in click's context: `-o json` was given."""
_JSON_PRINTED = "meshd.printed"
_WATCH_S = 2.0


@dataclass(frozen=True, slots=True)
class Session:
    """The options before the command."""

    config: Path
    socket: Path
    fault: CliError | None = None
    """Why the settings file that the user named cannot tell where the daemon is."""

    def ask(self, work: Callable[[HeadClient], Awaitable[T]], *, if_interrupted: str = "interrupted") -> T:
        """Run `work` against the daemon.

        Args:
            work: what to ask; gets the client.
            if_interrupted: what to say after Ctrl-C.

        Raises:
            CliError: unreachable, denied, refused, interrupted by Ctrl-C, or --config names a file that cannot be
                read.
        """
        if self.fault is not None:
            raise self.fault
        from meshd.cli.client import HeadClient  # slow to import, and not every command needs it

        async def body() -> T:
            async with HeadClient(self.socket) as head:
                return await work(head)

        try:
            return asyncio.run(body())
        except KeyboardInterrupt:
            raise interrupted(if_interrupted) from None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something that does not speak with the daemon. Ctrl-C cancels it.

        Raises:
            CliError: interrupted by Ctrl-C.
        """
        try:
            return asyncio.run(work)
        except KeyboardInterrupt:
            raise interrupted() from None

    def show(
        self, ask: Callable[[HeadClient], Awaitable[D]], render: Callable[[D], None], *, watch: bool, as_json: bool
    ) -> None:
        """Show an answer once, or with `watch` every 2 s until Ctrl-C.

        While it watches, a terminal is redrawn in place. A pipe gets each answer below the last one, with `as_json` on
        one line.

        Args:
            ask: asks the daemon.
            render: prints an answer.
            watch: `--watch` was given.
            as_json: `-o json` was given.
        """
        if not watch:
            render(self.ask(ask))
            return

        async def repeat(head: HeadClient) -> None:
            while True:
                view = await ask(head)
                if as_json:
                    click.echo(json_clean(view.model_dump_json()))
                else:
                    if sys.stdout.isatty():
                        click.clear()
                    render(view)
                sys.stdout.flush()
                await asyncio.sleep(_WATCH_S)

        self.ask(repeat, if_interrupted="")


_SOCKET_LINE = re.compile(r"""^\[cluster\][^\[]*?^\s*socket\s*=\s*["']([^"'\n]+)["']""", re.M)


def find_socket(given: Path | None, config: Path) -> Path:
    """Where the daemon listens: the option, else MESHD_CLUSTER__SOCKET, else the settings file, else the default.

    The default also holds where the settings file is faulty, or this user may not read it.
    """
    if given is not None:
        return given
    if from_env := os.environ.get("MESHD_CLUSTER__SOCKET"):
        return Path(from_env)
    try:
        text = config.read_text("utf-8-sig")
    except (OSError, ValueError):
        return standard_paths.SOCKET
    try:
        found = tomllib.loads(text).get("cluster", {}).get("socket")
    except (ValueError, AttributeError):
        # `meshctl reload` reports faults of the file, so a fault elsewhere in it must not hide the socket.
        match = _SOCKET_LINE.search(text)
        found = match[1] if match else None
    return Path(found) if isinstance(found, str) and found else standard_paths.SOCKET


def find_ssh_key(config: Path) -> Path:
    """The head's key for its nodes: MESHD_CLUSTER__SSH_KEY, else the settings file, else the default."""
    if from_env := os.environ.get("MESHD_CLUSTER__SSH_KEY"):
        return Path(from_env)
    try:
        found = tomllib.loads(config.read_text("utf-8-sig")).get("cluster", {}).get("ssh_key")
    except (OSError, ValueError, AttributeError):
        found = None
    return Path(found) if isinstance(found, str) and found else standard_paths.SSH_KEY


def named_config_fault(config: Path, *, socket_given: bool) -> CliError | None:
    """Why the settings file that the user named cannot tell where the daemon is; None if it can.

    Args:
        config: the file that --config or MESHD_CONFIG names. It is an error if meshctl had to ignore it.
        socket_given: --socket was given, so only a missing file is an error.
    """
    try:
        table = tomllib.loads(config.read_text("utf-8"))
        fault = "" if isinstance(table.get("cluster", {}), dict) else "cluster is not a table"
    except FileNotFoundError:
        text = f"--config: there is no file {config}"
        return CliError(text, "name another file, or leave out --config", code=ExitCode.USAGE, kind="config")
    except OSError as error:
        fault = error.strerror or str(error)
    except ValueError:  # no TOML, or no UTF-8
        fault = "it is not valid TOML"
    if not fault or socket_given:
        return None
    return CliError(
        f"--config: {config} does not say where the daemon listens: {fault}",
        f"see `meshctl --config {config} config check`, or name the socket with --socket",
        code=ExitCode.USAGE, kind="config",
    )  # fmt: skip


def session_of(ctx: click.Context) -> Session:
    """The session of a command; also during completion, where click runs no callbacks."""
    root = ctx.find_root()
    if not isinstance(root.obj, Session):
        config = root.params.get("config") or standard_paths.SETTINGS
        root.obj = Session(config=config, socket=find_socket(root.params.get("socket"), config))
    return root.obj


def wants_error_document(ctx: click.Context) -> bool:
    """Whether an error goes to stdout as JSON: with `-o json`, and nothing printed yet."""
    return bool(ctx.meta.get(JSON_WANTED)) and not ctx.meta.get(_JSON_PRINTED)


def say(text: str) -> None:
    """Print a message on stderr. Stdout is for the answer only."""
    click.echo(clean(text), err=True)


def print_json(document: BaseModel) -> None:
    """Print a document on stdout, and remember that."""
    click.get_current_context().meta[_JSON_PRINTED] = True
    click.echo(json_clean(document.model_dump_json(indent=2)))


def is_terminal() -> bool:
    """Whether a user can answer questions."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, *, yes: bool, why: str) -> None:
    """Ask the user before a change that costs money or takes machines away.

    Args:
        question: the answer is yes or no.
        yes: `--yes` was given: do not ask.
        why: what the change does, for the error without a terminal.

    Raises:
        CliError: there is no terminal to ask on, or the answer is no.
    """
    if yes:
        return
    if not is_terminal():
        raise CliError(
            f"{why}, and there is no terminal to ask on",
            "check it with --dry-run, then add --yes",
            code=ExitCode.USAGE,
            kind="needs_yes",
        )
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        raise interrupted("interrupted: nothing was changed") from None
    if not agreed:
        raise QuietError("nothing was changed", code=ExitCode.FAILED, kind="declined")
