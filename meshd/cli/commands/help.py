"""`meshctl help`: shows the help of meshctl, of a command, or of a topic."""

from __future__ import annotations

from difflib import get_close_matches

import click

from meshd.cli.errors import EXIT_CODES_HELP

TOPICS = {"exit-codes": EXIT_CODES_HELP}
"""Help texts that belong to no command, by the name for `meshctl help NAME`."""


@click.command("help")
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def command(ctx: click.Context, *, words: tuple[str, ...]) -> None:
    """Show the help of a command, or of the topic exit-codes."""
    if len(words) == 1 and words[0] in TOPICS:
        click.echo(TOPICS[words[0]].removeprefix("\b\n"), nl=False)
        return
    here = ctx.find_root()
    for word in words:
        inner = here.command.get_command(here, word) if isinstance(here.command, click.Group) else None
        if inner is None:
            raise click.UsageError(_unknown(here, word), ctx)
        here = click.Context(inner, info_name=inner.name, parent=here)
    click.echo(here.get_help())


def _unknown(here: click.Context, word: str) -> str:
    """The error for an unknown word; it names similar commands and topics."""
    if not isinstance(here.command, click.Group):
        return f"{here.command_path} has no command '{word}'."
    names = here.command.list_commands(here) + (list(TOPICS) if here.parent is None else [])
    near = get_close_matches(word, names, n=3, cutoff=0.6)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(names)}."
    return f"{here.command_path} has no command or topic '{word}'. {hint}"
