"""`meshctl init`: prepare the head. The one command that writes files itself, so it runs as root."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from meshd.api.schema import InitChange, InitView
from meshd.cli import headstate, munge_side, render
from meshd.cli.exits import CliError, Exit
from meshd.cli.session import Session, confirm, output_option, print_json, say
from meshd.config import Settings, load
from meshd.errors import ConfigError, MeshdError
from meshd.munge.key import KEY_PATH
from meshd.slurm.init import InitPlan, plan_init, render_diff
from meshd.slurm.init_apply import apply_init


@click.command("init")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be changed.")
@click.option("--head-address", metavar="ADDRESS", help="The head's tailnet address; else what tailscale says.")
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("/"),
    help="Where the file system begins, to prepare another machine's image.",
)
@output_option
@click.pass_obj
def command(session: Session, *, yes: bool, dry_run: bool, head_address: str | None, root: Path, as_json: bool) -> None:
    """Prepare Slurm's files and the munge key on the head.

    Shows a diff with reasons, asks, and keeps a copy of each file that it changes. Nothing of yours is dropped.
    Doing it again changes nothing.
    """
    if os.geteuid() != 0 and not dry_run:
        raise CliError("init writes Slurm's files: it needs root", "sudo meshctl init", code=Exit.DENIED, kind="denied")
    try:
        settings = load(session.config)
        address = head_address or headstate.tailnet_address(settings)
        plan = plan_init(headstate.find(settings, address, root))
        key = root / KEY_PATH.relative_to("/")
        needs_key = munge_side.missing(key)
    except ConfigError as error:
        raise CliError(str(error), "see `meshctl config check`", kind="config") from error
    except MeshdError as error:
        raise CliError(str(error), "nothing was changed: mend it, then `meshctl init` again", kind="init") from error
    view = _view(plan, settings, needs_key=needs_key)
    if not as_json:
        _show(plan, view, err=not dry_run)
    changes = needs_key or not plan.empty
    if changes and not dry_run:
        confirm("Write this?", yes=yes, why="this changes the head's files")
        view = _apply(plan, view, key if needs_key else None, root)
    if as_json:
        print_json(view)
    if not changes:
        say("nothing to do: the head is prepared")
    for step in view.next if changes else []:
        say(f"next: {step}")


def _view(plan: InitPlan, settings: Settings, *, needs_key: bool) -> InitView:
    changes = [
        InitChange(path=str(c.path), reasons=list(c.reasons), diff=render_diff(_only(plan, str(c.path))))
        for c in plan.files
    ]
    changes += [InitChange(path=str(link.path), reasons=[f"a link to {link.target}"]) for link in plan.links]
    steps = []
    if needs_key:
        changes.append(InitChange(path=str(KEY_PATH), reasons=["there is no munge key: one is made"]))
        steps.append("systemctl restart munge")
    if plan.restart_slurmctld:
        steps.append(f"systemctl restart {settings.slurm.slurmctld_unit}")
    elif not plan.empty:
        steps.append("scontrol reconfigure")
    steps += ["systemctl restart meshd", "meshctl doctor"]
    return InitView(changes=changes, warnings=list(plan.warnings), next=steps)


def _only(plan: InitPlan, path: str) -> InitPlan:
    """The plan of one file."""
    return replace(plan, files=tuple(c for c in plan.files if str(c.path) == path), links=(), warnings=())


def _show(plan: InitPlan, view: InitView, *, err: bool) -> None:
    lines = render_diff(plan).splitlines()
    lines += [f"# {change.path}: {change.reasons[0]}" for change in view.changes if change.path.endswith("munge.key")]
    styles = {"+": "green", "-": "red", "#": "bold", "@": "cyan"}
    if lines:
        render.show(*(render.text(line, styles.get(line[:1], "")) for line in lines), err=err)


def _apply(plan: InitPlan, view: InitView, key: Path | None, root: Path) -> InitView:
    try:
        if key is not None:
            say(f"made a munge key, fingerprint {munge_side.make(key)}")
        copies = apply_init(plan, datetime.now(UTC), root=root)
    except MeshdError as error:
        raise CliError(
            str(error), "mend it, then `meshctl init` again: it goes on where it stopped", kind="init"
        ) from error
    except OSError as error:
        raise CliError(
            f"{error.filename} cannot be written: {error.strerror}",
            "mend it, then `meshctl init` again: it goes on where it stopped",
            kind="init",
        ) from error
    for copy in copies:
        say(f"kept a copy: {copy}")
    backups = {_original(str(copy)): str(copy) for copy in copies}
    done = [c.model_copy(update={"backup": backups.get(str(root / c.path.lstrip("/")), "")}) for c in view.changes]
    return view.model_copy(update={"changes": done, "applied": True})


def _original(copy: str) -> str:
    return copy.rpartition(".meshd-")[0]
