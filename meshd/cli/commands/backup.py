"""`meshctl backup`: what a new head needs, in one archive. It reads root's files, so it runs as root."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import click

from meshd.backup.archive import BackupRefused, Manifest, make
from meshd.cli.errors import CliError, ExitCode
from meshd.cli.session import Session, say
from meshd.errors import ConfigError, MeshdError

EXAMPLES = """\b
Examples:
  sudo meshctl backup --output /var/backups/head.tar
  sudo meshctl backup --output=- | age -r RECIPIENT >head.tar.age
"""


@click.command("backup", epilog=EXAMPLES)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The archive; - is stdout.  [default: ./meshd-CLUSTER-TIME.tar]",
)
@click.pass_obj
def command(session: Session, *, output: Path | None) -> None:
    """Write what a new head needs into one archive.

    It has the settings, all credentials, the munge key, the journal, the secrets of meshd, nodes.conf, and the key of
    the head's tailnet device. Whoever has it is root of the cluster: it has mode 0600, and is not encrypted.

    meshd may run meanwhile. Slurm's own state is not in it: docs/operations.md.
    """
    if os.geteuid() != 0:
        raise CliError("backup needs root: it reads all secrets of the head", "sudo meshctl backup",
                       code=ExitCode.DENIED, kind="denied")  # fmt: skip
    if str(output) == "-":
        if sys.stdout.isatty():
            raise CliError("an archive with secrets does not go to a terminal", "meshctl backup --output FILE",
                           code=ExitCode.USAGE, kind="usage")  # fmt: skip
        told(make_archive(session.config, sys.stdout.buffer), "stdout")
        return
    name = f"meshd-{{cluster}}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar"
    folder = output.parent if output else Path()
    try:
        fd, unfinished = tempfile.mkstemp(prefix=".meshd-backup-", dir=folder)
        try:
            with os.fdopen(fd, "wb") as file:
                manifest = make_archive(session.config, file)
                file.flush()
                os.fsync(file.fileno())
            path = output or folder / name.format(cluster=manifest.cluster)
            Path(unfinished).replace(path)
        finally:
            Path(unfinished).unlink(missing_ok=True)
    except OSError as error:
        raise CliError(f"{error.filename or output}: {error.strerror or error}", kind="backup") from error
    told(manifest, str(path))


def make_archive(settings: Path, out: BinaryIO) -> Manifest:
    """Write the archive. Raises CliError."""
    try:
        with tempfile.TemporaryDirectory(prefix="meshd-backup-") as work:
            manifest = make(settings, socket.gethostname(), Path(work), out)
            out.flush()
            return manifest
    except ConfigError as error:
        raise CliError(str(error), "see `meshctl config check`", kind="config") from error
    except BackupRefused as error:
        raise CliError(str(error), error.cure, kind="backup") from error
    except MeshdError as error:
        raise CliError(str(error), kind="backup") from error


def told(manifest: Manifest, where: str) -> None:
    """Say what is in the archive."""
    size = sum(entry.size for entry in manifest.files.values())
    what = f"{len(manifest.files)} files of cluster {manifest.cluster}, {size / 1048576:.1f} MiB"
    say(f"{where}: {what}. It has all secrets")
    for line in manifest.left_out:
        say(f"left out: {line}")
