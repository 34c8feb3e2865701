"""What every command shares: where the daemon is, how to print, how to ask, how to end."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tomllib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from pydantic import BaseModel

from meshd.cli.exits import CliError, Exit, QuietError, interrupted
from meshd.config import DEFAULT_PATH, ClusterSettings
from meshd.runtime.terminal import clean, json_clean

if TYPE_CHECKING:
    from meshd.cli.client import Head

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

JSON_WANTED = "meshd.json"
_PRINTED = "meshd.printed"


@dataclass(frozen=True, slots=True)
class Session:
    """The options that stand before the command."""

    config: Path
    socket: Path
    fault: CliError | None = None
    """Why the settings that were named on the command line cannot be used, though they say where the daemon is."""

    def ask(self, work: Callable[[Head], Awaitable[T]], *, if_interrupted: str = "interrupted") -> T:
        """Speak with the daemon; after Ctrl-C say `if_interrupted`.

        Raises:
            CliError: unreachable, denied, refused; interrupted by Ctrl-C; or --config names settings that cannot be
                read.
        """
        if self.fault is not None:
            raise self.fault
        from meshd.cli.client import Head  # only commands that speak with the daemon pay for its import

        async def body() -> T:
            async with Head(self.socket) as head:
                return await work(head)

        try:
            return asyncio.run(body())
        except KeyboardInterrupt:
            raise interrupted(if_interrupted) from None


_SOCKET_LINE = re.compile(r"""^\[cluster\][^\[]*?^\s*socket\s*=\s*["']([^"'\n]+)["']""", re.M)


def find_socket(given: Path | None, config: Path) -> Path:
    """Where the daemon listens: the option, MESHD_CLUSTER__SOCKET, the settings file, the default.

    The settings file may be unreadable for this user or faulty: then the default holds.
    """
    if given is not None:
        return given
    if from_env := os.environ.get("MESHD_CLUSTER__SOCKET"):
        return Path(from_env)
    try:
        text = config.read_text("utf-8-sig")
    except (OSError, ValueError):
        return ClusterSettings().socket
    try:
        found = tomllib.loads(text).get("cluster", {}).get("socket")
    except (ValueError, AttributeError):
        # A fault elsewhere in the file, which is what a reload is to tell of, does not hide where the daemon listens.
        match = _SOCKET_LINE.search(text)
        found = match[1] if match else None
    return Path(found) if isinstance(found, str) and found else ClusterSettings().socket


def named_config_fault(config: Path, *, socket_given: bool) -> CliError | None:
    """Why a settings file that somebody named cannot be used; None when it can.

    Args:
        config: what --config or MESHD_CONFIG names. Nobody names a file to have it ignored.
        socket_given: the socket is known without it, so that only a file that is not there is a mistake.
    """
    try:
        table = tomllib.loads(config.read_text("utf-8"))
        fault = "" if isinstance(table.get("cluster", {}), dict) else "cluster is no table"
    except FileNotFoundError:
        text = f"--config: there is no file {config}"
        return CliError(text, "give another --config, or none", code=Exit.USAGE, kind="config")
    except OSError as error:
        fault = error.strerror or str(error)
    except ValueError:  # no TOML, or no UTF-8
        fault = "it is no TOML that can be read"
    if not fault or socket_given:
        return None
    return CliError(
        f"--config: {config} does not say where the daemon listens: {fault}",
        f"see `meshctl --config {config} config check`, or give the socket with --socket",
        code=Exit.USAGE, kind="config",
    )  # fmt: skip


def session_of(ctx: click.Context) -> Session:
    """The session, also while the shell completes and no callback has run."""
    root = ctx.find_root()
    if not isinstance(root.obj, Session):
        config = root.params.get("config") or DEFAULT_PATH
        root.obj = Session(config=config, socket=find_socket(root.params.get("socket"), config))
    return root.obj


def output_option(command: F) -> F:
    """`-o table|json`."""

    def remember(ctx: click.Context, _option: click.Parameter, value: str) -> bool:
        ctx.meta[JSON_WANTED] = value == "json"
        return value == "json"

    return click.option(
        "-o",
        "--output",
        "as_json",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        callback=remember,
        help="For people, or one JSON document on stdout.",
    )(command)


def wants_error_document(ctx: click.Context) -> bool:
    """Stdout is for JSON and has none yet."""
    return bool(ctx.meta.get(JSON_WANTED)) and not ctx.meta.get(_PRINTED)


def say(text: str) -> None:
    """Talk: on stderr, so that stdout has only what was asked for."""
    click.echo(clean(text), err=True)


def print_json(document: BaseModel) -> None:
    """One document on stdout."""
    click.get_current_context().meta[_PRINTED] = True
    click.echo(json_clean(document.model_dump_json(indent=2)))


def is_terminal() -> bool:
    """Somebody sits there who can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, *, yes: bool, why: str) -> None:
    """Ask before something that costs money or takes machines away.

    Args:
        question: with yes or no for an answer.
        yes: `--yes` was given.
        why: what the change does, for the error when nobody can be asked.

    Raises:
        CliError: nobody can be asked, or the answer is no.
    """
    if yes:
        return
    if not is_terminal():
        raise CliError(
            f"{why}, and nobody can be asked: this is no terminal",
            "look at it with --dry-run, then add --yes",
            code=Exit.USAGE,
            kind="needs_yes",
        )
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        raise interrupted("interrupted: nothing was changed") from None
    if not agreed:
        raise QuietError("nothing was changed", code=Exit.FAILED, kind="declined")
