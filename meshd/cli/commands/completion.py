"""`meshctl completion`: prints the shell's completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

EXAMPLES = """\b
Examples:
  bash:  meshctl completion bash > /etc/bash_completion.d/meshctl
  zsh:   meshctl completion zsh > /usr/local/share/zsh/site-functions/_meshctl
  fish:  meshctl completion fish > ~/.config/fish/completions/meshctl.fish
"""


@click.command("completion", epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, *, shell: str) -> None:
    """Print the script that completes commands and names in a shell."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "meshctl", "_MESHCTL_COMPLETE").source())
