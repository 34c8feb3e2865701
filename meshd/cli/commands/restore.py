"""`meshctl restore`: puts the archive of `meshctl backup`, or a copy of the journal, onto this head, as root."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

import click

from meshd.backup import archive
from meshd.backup import restore as restoring
from meshd.backup.archive import BackupRefused, HeadPlaces, Manifest
from meshd.cli.errors import CliError, ExitCode
from meshd.cli.params.options import yes_option
from meshd.cli.session import Session, confirm, say
from meshd.config import load
from meshd.errors import ConfigError, MeshdError

EXAMPLES = """\b
Examples:
  sudo meshctl restore --dry-run head.tar
  age -d -i KEYFILE head.tar.age | sudo meshctl restore --yes -
"""


@click.command("restore", epilog=EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--restart", is_flag=True, help="Stop meshd if it runs, and start it again afterwards.")
@click.option(
    "--tailnet",
    is_flag=True,
    help="Also take over the old head's tailnet device, with its name and address. The old head must be off: two "
    "machines with one device lose their connections.",
)
@click.option("--dry-run", is_flag=True, help="Only check the archive, and show what is in it.")
@yes_option
@click.pass_obj
def command(session: Session, *, file: Path, restart: bool, tailnet: bool, dry_run: bool, yes: bool) -> None:
    """Put an archive of `meshctl backup` onto this head.

    It also takes a copy of the journal alone, such as journal.db.form-N, for the way back to an older meshd: it refuses
    while machines are there that the copy does not have, and names them. It checks the digests, the cluster and the
    versions before it changes anything, and keeps aside what it replaces. It refuses while meshd runs, unless you give
    --restart. With - it reads stdin, and needs --yes.
    """
    if os.geteuid() != 0:
        raise CliError("restore needs root: it writes all secrets of the head", "sudo meshctl restore FILE",
                       code=ExitCode.DENIED, kind="denied")  # fmt: skip
    with _refusals():
        runs = restoring.daemon_runs()
        if runs and not restart and not dry_run:
            raise BackupRefused("meshd runs: it would lose what it writes meanwhile", "give --restart")
        with restoring.opened(file) as source, tempfile.TemporaryDirectory(prefix="meshd-restore-") as work:
            if restoring.is_journal(source):
                put = _journal(session, source, dry_run=dry_run, yes=yes)
            else:
                put = _archive(session, source, Path(work), tailnet=tailnet, yes=yes or dry_run)
            if dry_run:
                say("nothing was changed")
                return
            with restoring.daemon_stopped() if runs else nullcontext():
                done = put()
    for folder in done.aside:
        say(f"what was replaced is in {folder}: remove it when it is no longer needed")
    for folder in done.forgotten:
        say(f"removed, since newer ones are kept: {folder}")
    for step in _next(done, runs=runs):
        say(f"next: {step}")


def _journal(session: Session, source: BinaryIO, *, dry_run: bool, yes: bool) -> Callable[[], restoring.Restored]:
    """Check it, or ask; returns what puts the copy of the journal in its place."""
    state_dir = load(session.config).cluster.state_dir
    if dry_run:
        restoring.check_journal(source, state_dir)
    else:
        confirm(f"Put this copy in the place of {state_dir}/journal.db?", yes=yes, why="this replaces the journal")
    return lambda: restoring.restore_journal(source, state_dir)


def _archive(
    session: Session, source: BinaryIO, work: Path, *, tailnet: bool, yes: bool
) -> Callable[[], restoring.Restored]:
    """Check the archive, and ask; returns what puts its files in their place."""
    manifest = archive.read(source, work)
    settings = archive.cluster_of(work, manifest)
    _check_cluster(session.config, manifest)
    if tailnet and archive.TAILSCALED not in manifest.files:
        raise BackupRefused("the archive has no tailnet device", "leave out --tailnet")
    say(f"cluster {manifest.cluster}, written by meshd {manifest.meshd} on {manifest.head}, {manifest.made_at}")
    confirm("Replace settings, secrets and the journal of this head?", yes=yes, why="this replaces what the head has")

    def put() -> restoring.Restored:
        with restoring.tailscaled_stopped() if tailnet else nullcontext():
            return restoring.restore(work, manifest, settings.cluster.state_dir, tailnet=tailnet, places=HeadPlaces())

    return put


def _check_cluster(path: Path, manifest: Manifest) -> None:
    """Refuse the archive of another cluster than the one whose head this is: one that has pools."""
    try:
        here = load(path)
    except ConfigError:
        return  # a new head, or one whose settings are what is to be restored
    if here.pools and here.cluster.name != manifest.cluster:
        raise BackupRefused(
            f"this head is of cluster {here.cluster.name!r}, the archive of {manifest.cluster!r}",
            f"if this head shall become the other's: mv {path} {path}.old",
        )


def _next(done: restoring.Restored, *, runs: bool) -> Iterator[str]:
    if done.munge_key:
        yield "systemctl restart munge"
    yield "meshctl init"
    if not runs:
        yield "systemctl enable --now meshd"
    yield "meshctl doctor"


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise CliError(str(error), "see `meshctl config check`", kind="config") from error
    except BackupRefused as error:
        raise CliError(str(error), error.cure, kind="restore") from error
    except MeshdError as error:
        raise CliError(str(error), kind="restore") from error
    except OSError as error:
        raise CliError(f"{error.filename or 'a file'}: {error.strerror or error}", kind="restore") from error
