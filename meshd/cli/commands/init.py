"""`meshctl init`: placeholder until the Slurm side is there."""

from __future__ import annotations

import click


@click.command("init")
def command() -> None:
    """Prepare the head: Slurm's files and the munge key."""
    raise click.UsageError("not here yet")
