"""PURE: plans accounting on the head: slurmdbd with MariaDB, and what slurm.conf needs for it.

slurmdbd logs in to MariaDB by the socket, as its own user: there is no password. An accounting that somebody else has
set up stays as it is.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from meshd.slurm.init.amend import Editor, read_number
from meshd.slurm.init.codes import InitRefused, Refusal, Warn
from meshd.slurm.init.types import DATABASE, AccountingPlan, AccountingState, FileChange, InitInput

SLURMDBD_CONF = "slurmdbd.conf"
MARIADB_CONF = PurePosixPath("/etc/mysql/mariadb.conf.d/60-meshd-slurmdbd.cnf")
DROP_IN = PurePosixPath("/etc/systemd/system/slurmdbd.service.d/10-meshd.conf")
PORT = 6819

HEADER = "# Written once by `meshctl init --accounting`; it is yours from now on.\n"
STORAGE = "accounting_storage/slurmdbd"
LOCAL = "localhost"

BUFFER_MAX_MIB = 2048
"""With 1 GiB slurmdbd logs `Database settings not recommended values`, not with 2 GiB (24.11.5)."""

BUFFER_MIN_MIB = 128
"""InnoDB's default."""

LOCK_WAIT_S = 900
"""What slurmdbd recommends: it writes many rows in one transaction."""

_LOCKS_OUT = frozenset({"associations", "limits", "qos", "safe", "wckeys", "all"})


def plan_accounting(editor: Editor) -> AccountingPlan | None:
    """Plan the services' files, and put what they need in force in slurm.conf.

    Returns:
        None where it is not asked for, or somebody else has set it up.

    Raises:
        InitRefused: packages are missing, another database is there, or jobs of all users would be refused.
    """
    have, state = editor.have, editor.have.accounting
    if state is None or _set_up_otherwise(editor, state):
        return None
    _refuse(editor, state)
    _amend(editor)
    tree = editor.tree
    port = read_number(tree.get("AccountingStoragePort") or "") or PORT
    files = tuple(change for change in _files(have, state, port) if change.path not in state.present)
    return AccountingPlan(
        files=files,
        start=bool(files) or not state.serves,
        register=not state.registered,
        cluster=(tree.get("ClusterName") or have.cluster).lower(),
        user=have.slurm_user,
        port=port,
        state_dir=PurePosixPath(tree.get("StateSaveLocation") or "/var/spool"),
    )


def uses_slurmdbd(kind: str | None) -> bool:
    """Whether AccountingStorageType names slurmdbd; its prefix may be left out."""
    return (kind or "").lower().removeprefix("accounting_storage/") == "slurmdbd"


def _set_up_otherwise(editor: Editor, state: AccountingState) -> bool:
    tree, have = editor.tree, editor.have
    host = tree.get("AccountingStorageHost") or LOCAL
    if uses_slurmdbd(tree.get("AccountingStorageType")) and not _is_local(host, have):
        placed = tree.last("AccountingStorageHost")
        editor.warn(
            Warn.ACCOUNTING_ELSEWHERE,
            f"{placed.where if placed else 'AccountingStorageHost'}: slurmdbd of {host} keeps the records of jobs: "
            f"meshd leaves it as it is; {_check_tres(editor)}",
        )
        return True
    if state.slurmdbd_conf is not None and not state.slurmdbd_conf.startswith(HEADER):
        path = have.conf_dir / SLURMDBD_CONF
        editor.warn(
            Warn.ACCOUNTING_EXISTS,
            f"{path} is not meshd's: it leaves your slurmdbd as it is; {_check_tres(editor)}; to have meshd set it up: "
            f"mv {path} {path}.old",
        )
        return True
    return False


def _is_local(host: str, have: InitInput) -> bool:
    return host.lower() in (LOCAL, "127.0.0.1", "::1", have.head.lower(), have.head_address)


def _check_tres(editor: Editor) -> str:
    if any(item.lower() == "gres/gpu" for item in editor.tree.list_of("AccountingStorageTRES")):
        return "it counts GPUs"
    return "add gres/gpu to AccountingStorageTRES, so that it counts GPUs"


def _refuse(editor: Editor, state: AccountingState) -> None:
    tree = editor.tree
    if state.other_database:
        raise InitRefused(
            Refusal.OTHER_DATABASE,
            "this head has MySQL; meshd sets up accounting with MariaDB only",
            f"set up slurmdbd by hand (its user needs all rights on {DATABASE} alone), and name it in slurm.conf",
        )
    if state.missing:
        raise InitRefused(
            Refusal.PACKAGES_MISSING,
            f"accounting needs {' and '.join(state.missing)}",
            f"apt-get install --yes {' '.join(state.missing)}",
        )
    enforced = [item for item in tree.list_of("AccountingStorageEnforce") if item.lower() in _LOCKS_OUT]
    placed = tree.last("AccountingStorageEnforce")
    if enforced and placed and not uses_slurmdbd(tree.get("AccountingStorageType")):
        raise InitRefused(
            Refusal.WOULD_LOCK_OUT,
            f"{placed.where}: with {','.join(enforced)} Slurm would refuse all jobs: a new slurmdbd knows no users",
            "remove AccountingStorageEnforce; set it again when `sacctmgr add user` has added everybody",
        )


def _amend(editor: Editor) -> None:
    tree = editor.tree
    if not uses_slurmdbd(tree.get("AccountingStorageType")):
        editor.set("AccountingStorageType", STORAGE, "slurmdbd keeps the records of jobs")
    if not _is_local(tree.get("AccountingStorageHost") or "", editor.have):
        editor.set("AccountingStorageHost", LOCAL, "slurmdbd runs on the head")
    editor.add_item("AccountingStorageTRES", "gres/gpu", "records have the number of GPUs")
    if tree.get("JobAcctGatherType") is None:
        cgroups = (tree.get("ProctrackType") or "proctrack/cgroup").lower() == "proctrack/cgroup"
        editor.set(
            "JobAcctGatherType",
            f"jobacct_gather/{'cgroup' if cgroups else 'linux'}",
            "records have the memory and CPU time that jobs used",
        )


def _files(have: InitInput, state: AccountingState, port: int) -> tuple[FileChange, ...]:
    buffer_mib = min(BUFFER_MAX_MIB, max(BUFFER_MIN_MIB, state.memory_mib // 4))
    mariadb = f"{HEADER}[mariadbd]\ninnodb_buffer_pool_size = {buffer_mib}M\ninnodb_lock_wait_timeout = {LOCK_WAIT_S}\n"
    return (
        FileChange(MARIADB_CONF, None, mariadb, ("slurmdbd asks for these settings of InnoDB",)),
        FileChange(DROP_IN, None, _drop_in(have.slurm_user), ("it starts after MariaDB, and serves this host only",)),
        FileChange(
            have.conf_dir / SLURMDBD_CONF, None, _slurmdbd_conf(have.slurm_user, port),
            ("slurmdbd's settings, which only SlurmUser may read",), mode=0o600, owner=have.slurm_user,
        ),
    )  # fmt: skip


def _drop_in(user: str) -> str:
    """Slurmdbd listens at all addresses, and every machine has the munge key: systemd lets in this host alone."""
    return f"""\
{HEADER}[Unit]
After=mariadb.service
StartLimitIntervalSec=0

[Service]
User={user}
Group=
Restart=on-failure
RestartSec=1s
IPAddressAllow=localhost
IPAddressDeny=any
"""


def _slurmdbd_conf(user: str, port: int) -> str:
    """It has no LogFile: systemd's journal has the log, and bounds it."""
    return f"""\
{HEADER}AuthType=auth/munge
DbdHost={LOCAL}
DbdPort={port}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost={LOCAL}
StorageUser={user}
StorageLoc={DATABASE}
# How long records stay.
PurgeEventAfter=12months
PurgeStepAfter=12months
PurgeSuspendAfter=12months
PurgeJobAfter=36months
PurgeResvAfter=36months
PurgeTXNAfter=36months
PurgeUsageAfter=60months
"""
