"""`meshctl init`: prepares the head. The only command that writes files itself, so it runs as root."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import click

from meshd.api import endpoints
from meshd.api.schema import InitChange, InitFinding, InitView
from meshd.cli import head_ssh_key
from meshd.cli.errors import CliError, ExitCode
from meshd.cli.init_input import head_address, read_input
from meshd.cli.init_share import init_share
from meshd.cli.params.options import as_json_option, yes_option
from meshd.cli.render.terminal import clean_text, show
from meshd.cli.session import Session, confirm, print_json, say
from meshd.config import DEFAULT_PATH, Settings, load
from meshd.errors import ConfigError, MeshdError, MungeError
from meshd.munge.key import KEY_PATH, check_permissions, fingerprint, make_key, write_key
from meshd.runtime.clock import SystemClock
from meshd.runtime.rootfs import Kind, RootFs
from meshd.runtime.run import run
from meshd.slurm.init import compute_setup, probe
from meshd.slurm.init.accounting_setup import AccountingSetup
from meshd.slurm.init.apply import apply_init, check_init, take_back
from meshd.slurm.init.codes import InitRefused
from meshd.slurm.init.plan import plan_init
from meshd.slurm.init.types import InitPlan, render_diff

_KEY = PurePosixPath(KEY_PATH)
_KEY_OWNER = "munge"


@click.command("init")
@yes_option
@click.option("--dry-run", is_flag=True, help="Only show what would be changed. It refuses what a run would refuse.")
@click.option(
    "--head-address",
    "address",
    metavar="ADDRESS",
    help="The head's tailnet IPv4 address. By default meshctl asks tailscale.",
)
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("/"),
    help="Prepare another machine's image in this directory, with its own files, links, users and host name. "
    "Needs --head-address.",
)
@click.option(
    "--accounting",
    is_flag=True,
    help="Also set up accounting: slurmdbd with MariaDB on the head. It restarts a slurmctld that runs; jobs go on.",
)
@click.option(
    "--compute/--no-compute",
    default=None,
    help="Let jobs run on the head too, or no longer. By default [head] of the settings decides. Needs slurmd.",
)
@click.option(
    "--share",
    is_flag=True,
    help="Instead, make the head the NFS server of its nodes, for the directories of [share] in the settings.",
)
@as_json_option
@click.pass_obj
def command(
    session: Session,
    *,
    yes: bool,
    dry_run: bool,
    address: str | None,
    root: Path,
    accounting: bool,
    compute: bool | None,
    share: bool,
    as_json: bool,
) -> None:
    """Prepare the head: Slurm's files, the munge key, root's ssh key.

    It reads the settings that Slurm uses, with all included files. It shows a diff with reasons, asks, and keeps a
    copy of each file that it changes. It keeps your settings, and owners, modes and links. If it cannot repair
    something, it refuses and says what to do. A second run changes nothing.
    """
    if os.geteuid() != 0 and not dry_run:
        raise CliError("init needs root: it writes Slurm's files", "sudo meshctl init",
                       code=ExitCode.DENIED, kind="denied")  # fmt: skip
    fs = RootFs(root)
    if share:
        if accounting or compute is not None:
            raise CliError("--share is a step of its own", "`meshctl init` with the other options first",
                           code=ExitCode.USAGE, kind="usage")  # fmt: skip
        _share(session, fs, address, yes=yes, dry_run=dry_run, as_json=as_json)
        return
    with _refusals():
        settings = load(_settings_path(session, fs))
        ask_nodes = (lambda: session.ask(lambda head: head.call(endpoints.NODES))) if fs.is_host else None
        before = read_input(
            settings, head_address(settings, address, fs), fs, ask_nodes=ask_nodes, accounting=accounting,
            compute=compute,
        )  # fmt: skip
        plan = plan_init(before)
        for part in _parts(plan):
            check_init(part, fs)
        if fs.is_host:
            asyncio.run(probe.check_parse(run, before, plan))
        needs_key = _needs_key(fs)
        ssh_key = PurePosixPath(settings.cluster.ssh_key)
        needs_ssh_key = head_ssh_key.needs_key(fs, ssh_key)
    view = _view(plan, settings, needs_key=needs_key, new_ssh_key=ssh_key if needs_ssh_key else None)
    if not as_json:
        _show(plan, view, err=not dry_run)
    changes = needs_key or needs_ssh_key or not plan.empty
    if changes and not dry_run:
        confirm("Write this?", yes=yes, why="this changes the head's files")
        view = _apply(plan, view, fs, needs_key=needs_key, unit=settings.slurm.slurmctld_unit)
        if needs_ssh_key:
            _make_ssh_key(fs, ssh_key)
    if as_json:
        print_json(view)
    if not changes:
        say("nothing to write: the files are prepared" if view.next else "nothing to do: the head is prepared")
    for step in view.next:
        say(f"next: {step}")


def _share(session: Session, fs: RootFs, address: str | None, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    if not fs.is_host:
        raise CliError(
            "--share sets up this machine's NFS server", "leave out --root", code=ExitCode.USAGE, kind="usage"
        )
    with _refusals():
        path = _settings_path(session, fs)
        settings = load(path)
        address = head_address(settings, address, fs)
    init_share(settings, path, address, yes=yes, dry_run=dry_run, as_json=as_json)


def _settings_path(session: Session, fs: RootFs) -> Path:
    """The settings file: the one named, else the host's, else the image's own."""
    if fs.is_host or session.config != DEFAULT_PATH:
        return session.config
    return fs.locate(PurePosixPath(DEFAULT_PATH))


@contextmanager
def _refusals() -> Iterator[None]:
    """Turns every refusal into an error of meshctl. Nothing was changed."""
    try:
        yield
    except ConfigError as error:
        raise CliError(str(error), "see `meshctl config check`", kind="config") from error
    except InitRefused as error:
        raise CliError(str(error), error.cure, kind=str(error.code)) from error
    except MeshdError as error:
        raise CliError(str(error), "nothing was changed: correct it, then `meshctl init` again", kind="init") from error
    except OSError as error:
        raise CliError(
            f"{error.filename or 'a file'}: {error.strerror or error}",
            "nothing was changed: correct it, then `meshctl init` again",
            kind="init",
        ) from error


def _view(plan: InitPlan, settings: Settings, *, needs_key: bool, new_ssh_key: PurePosixPath | None = None) -> InitView:
    changes = [
        InitChange(path=str(c.path), reasons=list(c.reasons), diff=render_diff(_only(part, str(c.path))))
        for part in _parts(plan)
        for c in part.files
    ]
    changes += [InitChange(path=str(link.path), reasons=[f"a link to {link.target}"]) for link in plan.links]
    if plan.make_files and not plan.links:
        changes.append(InitChange(path=str(plan.slurm_dir), reasons=["meshd's files are missing: create them"]))
    steps = []
    if needs_key:
        changes.append(InitChange(path=str(_KEY), reasons=["there is no munge key: make one"]))
        steps.append("systemctl restart munge")
    if plan.restart_slurmctld:
        steps.append(f"systemctl restart {settings.slurm.slurmctld_unit}")
    elif not plan.empty:
        steps.append("scontrol reconfigure")
    if plan.compute and plan.compute.restart:
        # Machines that joined before get the head's line by the last one: a job over both needs it.
        steps += ["systemctl restart slurmd", "scontrol reconfigure"]
    if changes or plan.restart_slurmctld:
        steps.append("systemctl restart meshd")
    steps += ["meshctl doctor"] if steps else []
    if new_ssh_key is not None:
        text = "there is no key of root's for the nodes (meshctl ssh): make one"
        changes.append(InitChange(path=str(new_ssh_key), reasons=[text]))
    findings = [InitFinding(code=str(finding.code), text=finding.text) for finding in plan.findings]
    actions = [*(plan.accounting.actions if plan.accounting else ()), *(plan.compute.actions if plan.compute else ())]
    return InitView(changes=changes, actions=actions, warnings=list(plan.warnings), findings=findings, next=steps)


def _only(plan: InitPlan, path: str) -> InitPlan:
    """The part of the plan for one file."""
    files = tuple(change for change in plan.files if str(change.path) == path)
    return replace(plan, files=files, links=(), findings=(), accounting=None, compute=None)


def _parts(plan: InitPlan) -> Iterator[InitPlan]:
    """What is written before the services of accounting start, and what is written then."""
    if plan.accounting:
        yield replace(plan, files=plan.accounting.files, links=(), read={}, accounting=None, compute=None)
    yield plan


def _show(plan: InitPlan, view: InitView, *, err: bool) -> None:
    lines = render_diff(plan).splitlines()
    shown = {str(change.path) for part in _parts(plan) for change in part.files} | {str(x.path) for x in plan.links}
    lines += [f"# {change.path}: {change.reasons[0]}" for change in view.changes if change.path not in shown]
    styles = {"+": "green", "-": "red", "#": "bold", "@": "cyan"}
    if lines:
        show(*(clean_text(line, styles.get(line[:1], "")) for line in lines), err=err)


def _apply(plan: InitPlan, view: InitView, fs: RootFs, *, needs_key: bool, unit: str) -> InitView:
    copies: dict[PurePosixPath, Path] = {}
    now = datetime.now(UTC)
    *first, last = _parts(plan)
    if needs_key and first:
        say(f"made a munge key, fingerprint {_made_key(fs)}")  # slurmdbd needs munge
        needs_key = False
    with _refusals():
        for part in first:
            copies |= apply_init(part, now, fs)
    setup = AccountingSetup(run, SystemClock())
    if plan.accounting and plan.accounting.start:
        say("starting MariaDB and slurmdbd")
        with _half_done(f"slurm.conf is as it was; {_AGAIN}"):
            asyncio.run(setup.start_services(plan.accounting))
    with _refusals():
        copies |= apply_init(last, now, fs)
    if plan.compute:
        with _half_done("correct it, then `meshctl init` again: Slurm's files are written"):
            asyncio.run(compute_setup.carry_out(plan.compute, run))
    for copy in copies.values():
        say(f"kept a copy: {copy}")
    backups = {str(path): str(copy) for path, copy in copies.items()}
    done = [c.model_copy(update={"backup": backups.get(c.path, "")}) for c in view.changes]
    if needs_key:
        say(f"made a munge key, fingerprint {_made_key(fs)}")
    steps = view.next
    if plan.accounting and _begin_accounting(setup, plan, fs, unit):
        steps = [
            step for step in steps if not step.startswith(("systemctl restart slurmctld", "systemctl restart munge"))
        ]
    return view.model_copy(update={"changes": done, "next": steps, "applied": True})


_AGAIN = "correct it, then `meshctl init --accounting` again"


def _begin_accounting(setup: AccountingSetup, plan: InitPlan, fs: RootFs, unit: str) -> bool:
    """Register the cluster, and restart slurmctld where it runs: True."""
    services = plan.accounting
    assert services
    try:
        if services.register:
            asyncio.run(setup.register(services))
        return plan.restart_slurmctld and asyncio.run(setup.restart_slurmctld(unit, services.cluster))
    except MeshdError as error:
        take_back(plan, fs)
        asyncio.run(run(["systemctl", "try-restart", unit], timeout_s=60, check=False))
        raise CliError(
            str(error), f"slurm.conf is as it was; slurmdbd runs, see `journalctl -u slurmdbd`; {_AGAIN}",
            kind="init",
        ) from error  # fmt: skip


@contextmanager
def _half_done(cure: str) -> Iterator[None]:
    try:
        yield
    except MeshdError as error:
        raise CliError(str(error), cure, kind="init") from error


def _made_key(fs: RootFs) -> str:
    with _half_done("correct it, then `meshctl init` again: Slurm's files are written"):
        return _make_key(fs)


def _make_ssh_key(fs: RootFs, path: PurePosixPath) -> None:
    try:
        say(f"made root's key for the nodes, fingerprint {head_ssh_key.make_key(fs, path)}")
    except (MeshdError, OSError) as error:
        cure = "correct it, then `meshctl init` again: Slurm's files are written"
        raise CliError(f"{path}: {error}", cure, kind="init") from error


def _needs_key(fs: RootFs) -> bool:
    """Whether to make a munge key: there is none. An existing key stays as it is.

    Raises:
        MungeError: munged refuses the key that is there, its path is not a file, or there is no user munge.
    """
    if fs.kind(_KEY) not in (Kind.FILE, Kind.MISSING):
        raise MungeError(f"{_KEY} is not a file: mv {_KEY} {_KEY}.old")
    path = fs.locate(_KEY)
    if path.exists():
        check_permissions(path)
        return False
    _key_owner(fs)
    return True


def _make_key(fs: RootFs) -> str:
    """Make the munge key and give it to munge's user; returns its fingerprint.

    Raises:
        MungeError: the key cannot be written.
    """
    uid, gid = _key_owner(fs)
    path, key = fs.locate(_KEY), make_key()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_key(path, key)
        # The directory's owner could have put a link there meanwhile.
        os.chown(path, uid, gid, follow_symlinks=False)
        os.chown(path.parent, uid, gid, follow_symlinks=False)
    except OSError as error:
        raise MungeError(f"the munge key {path} cannot be written: {error.strerror}") from error
    return fingerprint(key)


def _key_owner(fs: RootFs) -> tuple[int, int]:
    """The ids of munge's user and group in this file system.

    Raises:
        MungeError: there is no such user.
    """
    try:
        return fs.ids(_KEY_OWNER)
    except (KeyError, OSError):
        raise MungeError(f"there is no user {_KEY_OWNER} (install munge on the head)") from None
