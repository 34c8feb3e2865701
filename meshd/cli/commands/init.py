"""`meshctl init`: prepare the head. The one command that writes files itself, so it runs as root."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import click

from meshd.api.schema import InitChange, InitFinding, InitView
from meshd.cli import headstate, munge_side, render
from meshd.cli.exits import CliError, Exit
from meshd.cli.session import Session, confirm, output_option, print_json, say
from meshd.config import DEFAULT_PATH, Settings, load
from meshd.errors import ConfigError, MeshdError, MungeError
from meshd.munge.key import KEY_PATH
from meshd.runtime.rootfs import Kind, RootFs
from meshd.runtime.run import run
from meshd.slurm import confcheck
from meshd.slurm.init import InitPlan, plan_init, render_diff
from meshd.slurm.init_apply import apply_init, check_init
from meshd.slurm.initcodes import InitRefused

_KEY = PurePosixPath(KEY_PATH)


@click.command("init")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be changed. Refuses what --yes would refuse.")
@click.option("--head-address", metavar="ADDRESS", help="The head's tailnet IPv4 address; else what tailscale says.")
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("/"),
    help="Where the file system begins, to prepare another machine's image: files, links, users and host name are its "
    "own. Needs --head-address.",
)
@output_option
@click.pass_obj
def command(session: Session, *, yes: bool, dry_run: bool, head_address: str | None, root: Path, as_json: bool) -> None:
    """Prepare Slurm's files and the munge key on the head.

    Judges by what Slurm has in force: all included files count. Shows a diff with reasons, asks, and keeps a copy of
    each file that it changes. Nothing of yours is dropped; owners, modes and links stay. What an edit cannot mend is
    refused, with what to do. Doing it again changes nothing.
    """
    if os.geteuid() != 0 and not dry_run:
        raise CliError("init writes Slurm's files: it needs root", "sudo meshctl init", code=Exit.DENIED, kind="denied")
    fs = RootFs(root)
    with _refusals():
        settings = load(_settings_path(session, fs))
        address = headstate.address_of(settings, head_address, fs)
        have = headstate.find(settings, address, fs)
        plan = plan_init(have)
        check_init(plan, fs)
        if fs.is_host:
            asyncio.run(confcheck.check_parse(run, have, plan))
        needs_key = _needs_key(fs)
    view = _view(plan, settings, needs_key=needs_key)
    if not as_json:
        _show(plan, view, err=not dry_run)
    changes = needs_key or not plan.empty
    if changes and not dry_run:
        confirm("Write this?", yes=yes, why="this changes the head's files")
        view = _apply(plan, view, fs, needs_key=needs_key)
    if as_json:
        print_json(view)
    if not changes:
        say("nothing to write: the files are prepared" if view.next else "nothing to do: the head is prepared")
    for step in view.next:
        say(f"next: {step}")


def _settings_path(session: Session, fs: RootFs) -> Path:
    """The settings file: where another machine's image is prepared, and none is named, its own."""
    if fs.is_host or session.config != DEFAULT_PATH:
        return session.config
    return fs.locate(PurePosixPath(DEFAULT_PATH))


def _needs_key(fs: RootFs) -> bool:
    """There is no munge key, and one can be made.

    Raises:
        MungeError: there is a key that munged refuses, something else at its place, or no user to give it to.
    """
    if fs.kind(_KEY) not in (Kind.FILE, Kind.MISSING):
        raise MungeError(f"{_KEY} is there and is not a file: mv {_KEY} {_KEY}.old")
    missing = munge_side.missing(fs.locate(_KEY))
    if missing:
        munge_side.owner(fs)
    return missing


@contextmanager
def _refusals() -> Iterator[None]:
    """Every refusal as meshctl tells it: nothing was changed."""
    try:
        yield
    except ConfigError as error:
        raise CliError(str(error), "see `meshctl config check`", kind="config") from error
    except InitRefused as error:
        raise CliError(str(error), error.cure, kind=str(error.code)) from error
    except MeshdError as error:
        raise CliError(str(error), "nothing was changed: mend it, then `meshctl init` again", kind="init") from error
    except OSError as error:
        raise CliError(
            f"{error.filename or 'a file'}: {error.strerror or error}",
            "nothing was changed: mend it, then `meshctl init` again",
            kind="init",
        ) from error


def _view(plan: InitPlan, settings: Settings, *, needs_key: bool) -> InitView:
    changes = [
        InitChange(path=str(c.path), reasons=list(c.reasons), diff=render_diff(_only(plan, str(c.path))))
        for c in plan.files
    ]
    changes += [InitChange(path=str(link.path), reasons=[f"a link to {link.target}"]) for link in plan.links]
    if plan.make_files and not plan.links:
        changes.append(InitChange(path=str(plan.slurm_dir), reasons=["meshd's files are missing there: made again"]))
    steps = []
    if needs_key:
        changes.append(InitChange(path=str(_KEY), reasons=["there is no munge key: one is made"]))
        steps.append("systemctl restart munge")
    if plan.restart_slurmctld:
        steps.append(f"systemctl restart {settings.slurm.slurmctld_unit}")
    elif not plan.empty:
        steps.append("scontrol reconfigure")
    if changes or plan.restart_slurmctld:
        steps += ["systemctl restart meshd", "meshctl doctor"]
    findings = [InitFinding(code=str(finding.code), text=finding.text) for finding in plan.findings]
    return InitView(changes=changes, warnings=list(plan.warnings), findings=findings, next=steps)


def _only(plan: InitPlan, path: str) -> InitPlan:
    """The plan of one file."""
    return replace(plan, files=tuple(c for c in plan.files if str(c.path) == path), links=(), findings=())


def _show(plan: InitPlan, view: InitView, *, err: bool) -> None:
    lines = render_diff(plan).splitlines()
    shown = {str(change.path) for change in plan.files} | {str(link.path) for link in plan.links}
    lines += [f"# {change.path}: {change.reasons[0]}" for change in view.changes if change.path not in shown]
    styles = {"+": "green", "-": "red", "#": "bold", "@": "cyan"}
    if lines:
        render.show(*(render.text(line, styles.get(line[:1], "")) for line in lines), err=err)


def _apply(plan: InitPlan, view: InitView, fs: RootFs, *, needs_key: bool) -> InitView:
    with _refusals():
        copies = apply_init(plan, datetime.now(UTC), fs)
    for copy in copies.values():
        say(f"kept a copy: {copy}")
    backups = {str(path): str(copy) for path, copy in copies.items()}
    done = [c.model_copy(update={"backup": backups.get(c.path, "")}) for c in view.changes]
    if needs_key:
        try:
            say(f"made a munge key, fingerprint {munge_side.make(fs.locate(_KEY), fs)}")
        except MungeError as error:
            raise CliError(
                str(error), "mend it, then `meshctl init` again: Slurm's files are done", kind="init"
            ) from error
    return view.model_copy(update={"changes": done, "applied": True})
