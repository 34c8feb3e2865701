"""meshctl: the group of commands. Each command is a module of `meshd.cli.commands`, loaded when it is called."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

import click
from click.core import ParameterSource
from pydantic import ValidationError

from meshd import __version__, standard_paths
from meshd.cli.errors import CliError
from meshd.cli.params.options import option_for_field
from meshd.cli.session import Session, find_socket, named_config_fault, print_json, wants_error_document
from meshd.settings_words import demand

COMMANDS = (
    "scale",
    "plan",
    "offers",
    "prices",
    "cost",
    "simulate",
    "status",
    "top",
    "nodes",
    "explain",
    "events",
    "logs",
    "test",
    "ssh",
    "run",
    "push",
    "pull",
    "drain",
    "undrain",
    "remove",
    "freeze",
    "thaw",
    "invite",
    "hosts",
    "image",
    "rotate-key",
    "audit",
    "doctor",
    "init",
    "backup",
    "restore",
    "config",
    "notify",
    "reload",
    "version",
    "completion",
    "help",
)

ELSEWHERE = {"simulate": "meshd.simulate.command"}
"""Commands that are above meshctl: the simulation contains the daemon, and only this command loads it."""


class CommandGroup(click.Group):
    """The commands, in the order in which users need them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command's module; None if there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        module = ELSEWHERE.get(cmd_name, f"meshd.cli.commands.{cmd_name.replace('-', '_')}")
        command = import_module(module).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command. The error for an unknown one names similar commands."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchOption:
            raise
        except click.UsageError as error:
            near = [c for c in COMMANDS if c.startswith(args[0])] or get_close_matches(args[0], COMMANDS, cutoff=0.6)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise click.UsageError(f"{error.message}{hint}", ctx) from None

    def invoke(self, ctx: click.Context) -> object:
        """Run a command. With `-o json`, print its error as a document on stdout too."""
        try:
            return super().invoke(ctx)
        except CliError as error:
            if wants_error_document(ctx):
                print_json(error.view())
            raise
        except click.NoSuchOption as error:
            if error.ctx is None or not any(error.option_name in parameter.opts for parameter in self.params):
                raise
            program, _, command = error.ctx.command_path.partition(" ")
            place = f"{program} {error.option_name} ... {command}"
            raise click.UsageError(f"{error.option_name} stands before the command: {place}", error.ctx) from None
        except ValidationError as error:  # a request refused a value, e.g. a name of 100 characters
            faults = (f"{_option(e['loc'])}: {demand(dict(e))}" for e in error.errors())
            raise click.UsageError("; ".join(faults)) from None


def _option(location: tuple[int | str, ...]) -> str:
    """The option that sets a request's field, as the user writes it."""
    field = next((str(part) for part in location if isinstance(part, str)), "")
    return option_for_field(field)


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="See `meshctl help COMMAND` for a command, and `meshctl help exit-codes` for the exit codes.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    default=standard_paths.SETTINGS,
    show_default=True,
    envvar="MESHD_CONFIG",
    help="meshd's settings file.",
)
@click.option(
    "--socket",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The daemon's socket.  [default: $MESHD_CLUSTER__SOCKET, else the settings file's cluster.socket]",
)
@click.version_option(__version__, prog_name="meshctl")
@click.pass_context
def cli(ctx: click.Context, config: Path, socket: Path | None) -> None:
    """Rent GPU machines in any cloud and use them as nodes of one Slurm cluster.

    Every user may look. Root and the members of meshd's group may make changes.
    """
    named = ctx.get_parameter_source("config") is not ParameterSource.DEFAULT
    fault = named_config_fault(config, socket_given=socket is not None) if named else None
    ctx.obj = Session(config=config, socket=find_socket(socket, config), fault=fault)


def main() -> None:
    """The entry point of the program meshctl."""
    try:
        cli.main(prog_name="meshctl")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
