"""`-o wide` and `-o name`, `--verbose`, and `--watch`: for commands that show a list."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, TypeVar

import click
from pydantic import BaseModel

from meshd.cli.client import Head
from meshd.cli.session import JSON_WANTED, Session

D = TypeVar("D", bound=BaseModel)
F = TypeVar("F", bound=Callable[..., Any])

WATCH_S = 2.0


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    WIDE = "wide"
    NAME = "name"
    JSON = "json"


def outputs_option(*kinds: Output) -> Callable[[F], F]:
    """`-o table|json` and more: the command gets `output`."""

    def remember(ctx: click.Context, _option: click.Parameter, value: str) -> Output:
        ctx.meta[JSON_WANTED] = value == Output.JSON
        return Output(value)

    words = {Output.WIDE: "wide: no column is left out", Output.NAME: "name: names alone"}
    more = "; ".join(words[kind] for kind in kinds)
    return click.option(
        "-o", "--output", type=click.Choice([Output.TABLE.value, Output.JSON.value, *(kind.value for kind in kinds)]),
        default=Output.TABLE.value, show_default=True, callback=remember,
        help=f"For people, or one JSON document on stdout; {more}.",
    )  # fmt: skip


def verbose_option(command: F) -> F:
    """`-v`: the command gets `verbose`."""
    return click.option("-v", "--verbose", is_flag=True, help="All the words of the clouds, and nothing summed up.")(
        command
    )


def watch_option(command: F) -> F:
    """`-w`: the command gets `watch`."""
    return click.option("-w", "--watch", is_flag=True, help="Show it again every 2 s until Ctrl-C.")(command)


def show_or_watch(
    session: Session, ask: Callable[[Head], Awaitable[D]], show: Callable[[D], None], *, watch: bool, output: Output
) -> None:
    """Show an answer, once, or again and again.

    On a terminal it is drawn anew in place; into a pipe each goes below the one before, with `-o json` as one line.

    Args:
        session: speaks with the daemon.
        ask: for the answer.
        show: prints one.
        watch: until Ctrl-C.
        output: as asked for.
    """
    if not watch:
        show(session.ask(ask))
        return

    async def again(head: Head) -> None:
        while True:
            view = await ask(head)
            if output is Output.JSON:
                click.echo(view.model_dump_json())
            else:
                if sys.stdout.isatty():
                    click.clear()
                show(view)
            sys.stdout.flush()
            await asyncio.sleep(WATCH_S)

    session.ask(again, if_interrupted="")
