"""Whether somebody can type a command of meshctl: it is parsed as meshctl does, and not run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click

from meshd.cli.main import cli

FILLER = "7"
"""Stands for what a message fills in: a number and a name alike."""

_ENDS = frozenset({"|", "||", "&", "&&", ";", "(", ")"})
_TO_FILES = frozenset({">", ">>", "<", ">&"})


def meant(words: list[str]) -> list[str]:
    """Words that stand for something, e.g. NAME, with what they stand for where it must be a number."""
    return [FILLER if word in {"N", "NUMBER"} else word for word in words]


def fault_of_meshctl(words: list[str]) -> str:
    """Why nobody can type the words behind `meshctl`; "" when it is fine."""
    if words[:1] == ["COMMAND"] or words == ["help", "COMMAND"]:
        return ""
    try:
        command, parent, words = _found(words)
        if isinstance(command, click.Group):
            return "a command of the group is missing"
        command.make_context(command.name, words, parent=parent)
    except click.exceptions.Exit:
        return ""
    except click.ClickException as error:
        return error.format_message()
    return ""


def asks(words: list[str]) -> bool:
    """Whether the words behind `meshctl` may lead to a question. They must be fine."""
    command, _, words = _found(words)
    can = {option for each in command.params for option in each.opts}
    return "--yes" in can and not {"--yes", "-y", "--dry-run"} & {*words}


def _found(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """The command that words name, the context around it, and the words behind its name. Raises ClickException."""
    if words and words[0] == "--config":
        words = words[2:]
    command: click.Command = cli
    context = parent = click.Context(cli, info_name="meshctl")
    while isinstance(command, click.Group) and words:
        name, command_found, words = command.resolve_command(context, words)
        assert command_found is not None
        parent, command = context, command_found
        context = click.Context(command, info_name=name, parent=parent)
    return command, parent, words


def programs(line: str) -> Iterator[list[str]]:
    """The words of each program that a line of sh starts, without `sudo`, redirections and comments.

    Raises:
        ValueError: a quotation is not closed.
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    tokens = list(lexer)
    while tokens:
        token = tokens.pop(0)
        if token in _TO_FILES:
            del tokens[:1]
        elif token not in _ENDS:
            words.append(token)
        if words and (token in _ENDS or not tokens):
            yield words[1:] if words[0] == "sudo" else words
            words = []
