"""`meshctl init --share`: makes the head the NFS server of its nodes."""

from __future__ import annotations

from pathlib import Path

from meshd.api.schema import InitChange, InitView
from meshd.cli.errors import CliError, ExitCode
from meshd.cli.render.terminal import clean_text, show
from meshd.cli.session import confirm, print_json, say
from meshd.config import Settings
from meshd.shares import setup_io
from meshd.shares.setup import HeadState, SetUp, plan
from meshd.shares.setup_io import SetUpFailed

_AGAIN = "correct it, then `meshctl init --share` again"
_STYLES = {"+": "green", "-": "red", "#": "bold", "@": "cyan"}


def init_share(settings: Settings, path: Path, address: str, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Show what it takes, ask, and do it. A second run changes nothing.

    Args:
        settings: those of `path`.
        path: meshd.toml.
        address: the head's on the tailnet.
        yes: do not ask.
        dry_run: only show.
        as_json: print a document.

    Raises:
        CliError: the server is not installed, or something cannot be done.
    """
    try:
        state = setup_io.read(path, settings.shares, address)
    except (OSError, SetUpFailed) as error:
        raise CliError(str(error), _AGAIN, kind="share") from error
    _check(state)
    wanted = plan(state, str(path))
    view = _view(wanted)
    if not as_json:
        _show(wanted, view, err=not dry_run)
    if not wanted.empty and not dry_run:
        confirm("Do this?", yes=yes, why="this changes the head's NFS server")
        view = _apply(wanted, view)
    if as_json:
        print_json(view)
    if wanted.empty:
        say("nothing to do: the head serves its shares")
    for step in view.next:
        say(f"next: {step}")


def _check(state: HeadState) -> None:
    own = not state.shares or any(not share.server for share in state.shares)
    if own and not state.has_server:
        raise CliError(
            "this head has no NFS server", "apt-get install nfs-kernel-server, then `meshctl init --share` again",
            code=ExitCode.FAILED, kind="share",
        )  # fmt: skip


def _view(wanted: SetUp) -> InitView:
    changes = [InitChange(path=one.path, reasons=[one.reason], diff=one.diff()) for one in wanted.files]
    changes += [InitChange(path=path, reasons=["make this directory, for everybody"]) for path in wanted.directories]
    changes += [InitChange(path=unit, reasons=["stop and mask it: only older NFS needs it"]) for unit in wanted.mask]
    if wanted.restart or wanted.start:
        changes.append(InitChange(path=setup_io.SERVER, reasons=["restart it" if wanted.restart else "start it"]))
    steps = ["systemctl reload meshd"] if wanted.changes_settings else []
    return InitView(changes=changes, warnings=list(wanted.notes), next=[*steps, "meshctl doctor"] if changes else [])


def _show(wanted: SetUp, view: InitView, *, err: bool) -> None:
    lines = [line for change in wanted.files for line in (f"# {change.reason}", *change.diff().splitlines())]
    shown = {change.path for change in wanted.files}
    lines += [f"# {change.path}: {change.reasons[0]}" for change in view.changes if change.path not in shown]
    lines += [f"# note: {note}" for note in wanted.notes]
    if lines:
        show(*(clean_text(line, _STYLES.get(line[:1], "")) for line in lines), err=err)


def _apply(wanted: SetUp, view: InitView) -> InitView:
    try:
        copies = setup_io.apply(wanted, say)
    except (OSError, SetUpFailed) as error:
        raise CliError(str(error), _AGAIN, kind="share") from error
    for copy in copies.values():
        say(f"kept a copy: {copy}")
    done = [change.model_copy(update={"backup": copies.get(change.path, "")}) for change in view.changes]
    return view.model_copy(update={"changes": done, "applied": True})
