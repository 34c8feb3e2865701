"""Options and arguments that commands share. A shell completes their values with names from the running daemon."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from meshd.cli.params.hostlist import expand
from meshd.cli.params.values import NonEmpty, duration
from meshd.cli.session import JSON_WANTED, session_of

if TYPE_CHECKING:
    from meshd.cli.params.completion import Names

F = TypeVar("F", bound=Callable[..., Any])


class OutputFormat(StrEnum):
    """How a command prints its answer."""

    TABLE = "table"
    WIDE = "wide"
    NAME = "name"
    JSON = "json"


def as_json_option(command: F) -> F:
    """`-o table|json`: the command gets `as_json`."""
    return _output_option("as_json", "A table, or one JSON document on stdout.", [], lambda value: value == "json")(
        command
    )


def output_option(*more: OutputFormat) -> Callable[[F], F]:
    """`-o table|json` and `more` formats: the command gets `output`, an OutputFormat."""
    meanings = {OutputFormat.WIDE: "wide: a table with all columns", OutputFormat.NAME: "name: names only"}
    help_text = f"A table, or one JSON document on stdout; {'; '.join(meanings[kind] for kind in more)}."
    return _output_option("output", help_text, list(more), OutputFormat)


def _output_option(
    name: str, help_text: str, more: list[OutputFormat], convert: Callable[[str], object]
) -> Callable[[F], F]:
    def remember(ctx: click.Context, _option: click.Parameter, value: str) -> object:
        ctx.meta[JSON_WANTED] = value == OutputFormat.JSON
        return convert(value)

    return click.option(
        "-o", "--output", name, type=click.Choice(["table", "json", *(kind.value for kind in more)]),
        default="table", show_default=True, callback=remember, help=help_text,
    )  # fmt: skip


def verbose_option(command: F) -> F:
    """`-v`: the command gets `verbose`."""
    return click.option(
        "-v", "--verbose", is_flag=True, help="Show messages in full, and each repeated one by itself."
    )(command)


def watch_option(command: F) -> F:
    """`-w`: the command gets `watch`."""
    return click.option("-w", "--watch", is_flag=True, help="Show it again every 2 s until Ctrl-C.")(command)


def yes_option(command: F) -> F:
    """`-y`: the command gets `yes`."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(command)


def timeout_option(command: F) -> F:
    """`--timeout`, which goes with `--wait`: the command gets `timeout_s`."""
    return click.option(
        "--timeout", "timeout_s", metavar="TIME", callback=duration, default="30m", show_default=True,
        help="How long --wait waits: 90s, 30m, 2h.",
    )(command)  # fmt: skip


def pool_option(help_text: str) -> Callable[[F], F]:
    """`--pool`, completed with the pools: the command gets `pool`."""
    return click.option("--pool", metavar="NAME", type=NonEmpty(), shell_complete=_complete("pools"), help=help_text)


def node_option(name: str, *, help_text: str, also: str = "") -> Callable[[F], F]:
    """A repeatable option that takes host lists, completed with the nodes.

    Args:
        name: of the option.
        help_text: for `--help`.
        also: a second spelling. With it the command gets `nodes`, without it the option's name.
    """
    names = [name, also, "nodes"] if also else [name]
    return click.option(
        *names, metavar="NODE", multiple=True, callback=_expand, shell_complete=_complete("nodes"), help=help_text
    )


def gpu_option(help_text: str) -> Callable[[F], F]:
    """`--gpu`, completed with the models on offer: the command gets `gpu`."""
    return click.option("--gpu", metavar="MODEL", type=NonEmpty(), shell_complete=_complete("gpus"), help=help_text)


def provider_option(help_text: str, *, multiple: bool = False) -> Callable[[F], F]:
    """`--provider`, completed with the enabled ones: the command gets `provider`."""
    return click.option(
        "--provider", metavar="NAME", type=NonEmpty(), multiple=multiple, shell_complete=_complete("providers"),
        help=help_text,
    )  # fmt: skip


def region_option(help_text: str) -> Callable[[F], F]:
    """`--region`, repeatable, completed with the regions on offer: the command gets `region`."""
    return click.option(
        "--region", metavar="NAME", type=NonEmpty(), multiple=True, shell_complete=_complete("regions"), help=help_text
    )


def subjects_argument(command: F) -> F:
    """One or more machines, slots or pools, completed: the command gets `subjects`."""
    return click.argument(
        "subjects", metavar="MACHINE|SLOT|POOL...", nargs=-1, required=True, callback=_expand,
        shell_complete=_complete("subjects"),
    )(command)  # fmt: skip


def nodes_argument(command: F) -> F:
    """One or more nodes, by machine or slot, completed: the command gets `nodes`."""
    return click.argument(
        "nodes", metavar="NODE...", nargs=-1, required=True, callback=_expand, shell_complete=_complete("nodes")
    )(command)


def node_argument(command: F) -> F:
    """One node, by machine or slot, completed: the command gets `node`."""
    return click.argument("node", metavar="NODE", type=NonEmpty(), shell_complete=_complete("nodes"))(command)


def run_nodes_argument(command: F) -> F:
    """One host list of slots, machines and pools, completed: the command gets `nodes`."""
    return click.argument("nodes", metavar="NODES", type=NonEmpty(), shell_complete=_complete("subjects"))(command)


def words_argument(*, required: bool) -> Callable[[F], F]:
    """A command for a node and its arguments, after an optional `--`: the command gets `words`."""

    def without_dashes(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
        words = value[1:] if value[:1] == ("--",) else value
        if required and not words:
            raise click.MissingParameter(ctx=ctx, param=param)
        return words

    metavar = "COMMAND..." if required else "[COMMAND]..."
    return click.argument("words", metavar=metavar, nargs=-1, type=click.UNPROCESSED, callback=without_dashes)


def optional_nodes_argument(command: F) -> F:
    """Nodes, by machine or slot, or none for all, completed: the command gets `nodes`."""
    return click.argument("nodes", metavar="[NODE]...", nargs=-1, callback=_expand, shell_complete=_complete("nodes"))(
        command
    )


def _expand(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Callback: the names in host lists."""
    return expand(value)


_ARGUMENTS = {"machine": "NODE", "subject": "MACHINE|SLOT|POOL", "providers": "PROVIDER"}
_OPTIONS = {
    "spot": "--spot or --on-demand",
    "pods": "--pods or --no-pods",
    "regions": "--region",
    "max_usd_per_gpu_hour": "--max-price",
    "max_usd_per_hour": "--max-total",
    "overshoot_max_gpus": "--max-overshoot",
    "gpu_memory_min_gib": "--min-vram",
    "leaked_at": "--since",
}


def option_for_field(field: str) -> str:
    """The option or argument that sets a request's field: `--max-price` for `max_usd_per_gpu_hour`."""
    return _ARGUMENTS.get(field) or _OPTIONS.get(field) or f"--{field.replace('_', '-')}"


def _complete(names: Names) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from meshd.cli.params import completion  # slow to import, and only completion needs it

        return completion.complete(names, incomplete, session_of(ctx).socket)

    return complete
