"""I/O: looks at slurmdbd and MariaDB on the head, starts them, and registers the cluster."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path, PurePosixPath

from meshd.errors import CommandError, MeshdError, SlurmError
from meshd.runtime.clock import Clock
from meshd.runtime.rootfs import Kind, RootFs
from meshd.runtime.run import Runner
from meshd.slurm.apply import JOB_SETTLE_MAX_S, JOB_SETTLE_S, START_S
from meshd.slurm.client import SlurmClient
from meshd.slurm.init.accounting import DROP_IN, MARIADB_CONF, PORT, SLURMDBD_CONF
from meshd.slurm.init.types import DATABASE, AccountingPlan, AccountingState

PROGRAMS = {
    "mariadb-server": PurePosixPath("/usr/sbin/mariadbd"),
    "slurmdbd": PurePosixPath("/usr/sbin/slurmdbd"),
}
MYSQLD = PurePosixPath("/usr/sbin/mysqld")

START_UNITS_S = 120.0
"""MariaDB takes 2 s on a quiet head. After a crash it repairs its tables first."""

SERVES_S = 60.0
"""slurmdbd makes its tables at its first start, and converts those of an older release."""

REGISTERED_S = 30.0
CALL_S = 20.0
POLL_S = 0.1

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
STATE_MAX_B = 4096
CLUSTER_ID_MAX = 32767
"""The column is a smallint."""


async def look(fs: RootFs, run: Runner, conf_dir: PurePosixPath, cluster: str, port: int = PORT) -> AccountingState:
    """What is there of it.

    Raises:
        OSError: a file cannot be read.
    """
    paths = (MARIADB_CONF, DROP_IN, conf_dir / SLURMDBD_CONF)
    present = frozenset(path for path in paths if fs.kind(path) is Kind.FILE)
    missing = tuple(package for package, path in PROGRAMS.items() if not fs.locate(path).exists())
    mysqld = fs.locate(MYSQLD)
    serves = not missing and await _listens(port)
    return AccountingState(
        missing=missing,
        other_database=mysqld.exists() and not fs.locate(PROGRAMS["mariadb-server"]).exists(),
        memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20,
        present=present,
        slurmdbd_conf=fs.read_text(conf_dir / SLURMDBD_CONF) if conf_dir / SLURMDBD_CONF in present else None,
        serves=serves,
        registered=serves and cluster.lower() in await _clusters(run),
    )


class AccountingSetup:
    """Starts the services of accounting, and registers the cluster. Each method may be repeated.

    Args:
        run: runs programs, as root.
        clock: for the waits.
    """

    def __init__(self, run: Runner, clock: Clock) -> None:
        self._run, self._clock = run, clock

    async def start_services(self, plan: AccountingPlan) -> None:
        """Start MariaDB, make the database and its user, and start slurmdbd. The services' files are written before.

        Raises:
            SlurmError: one does not start, or MariaDB refuses root or has such a user with another way to log in.
        """
        if not _USER.fullmatch(plan.user):
            raise SlurmError(f"SlurmUser {plan.user!r} cannot be a user of MariaDB")
        written = {change.path for change in plan.files}
        await self._call("systemctl", "daemon-reload")
        await self._call("systemctl", "start", "munge")
        await self._call("systemctl", "enable", "--quiet", "mariadb", "slurmdbd")
        await self._call("systemctl", "restart" if MARIADB_CONF in written else "start", "mariadb")
        await self._make_database(plan.user)
        await self._call("systemctl", "restart", "slurmdbd")
        try:
            await self._until(lambda: _listens(plan.port), SERVES_S, "slurmdbd does not answer")
        except SlurmError as error:
            argv = ["journalctl", "--no-pager", "-o", "cat", "-n", "3", "-u", "slurmdbd"]
            log = await self._run(argv, timeout_s=CALL_S, check=False)
            raise SlurmError(f"{error}: {' | '.join(log.stdout.splitlines())[-500:]}") from error

    async def register(self, plan: AccountingPlan) -> None:
        """Give slurmdbd the cluster. slurm.conf names slurmdbd already: sacctmgr reads it.

        slurmctld keeps an id of the cluster in its saved state (seen with 24.11, not with 22.05), and ends where
        slurmdbd has another id for it. So the entry gets the id that the cluster has.

        Raises:
            SlurmError: slurmdbd refuses, or another cluster has the id.
        """
        if not _NAME.fullmatch(plan.cluster):
            raise SlurmError(f"ClusterName {plan.cluster!r} is not a name that slurmdbd takes")
        if plan.cluster not in await _clusters(self._run):
            await self._call("sacctmgr", "-i", "-Q", "add", "cluster", plan.cluster)
        number = _cluster_id(Path(plan.state_dir), plan.cluster)
        if number:
            table = f"`{DATABASE}`.cluster_table"
            # The name was checked above.
            where = f"id = {number} AND name <> '{plan.cluster}'"
            taken = await self._sql(f"SELECT name FROM {table} WHERE {where}")  # noqa: S608
            if taken.strip():
                raise SlurmError(
                    f"slurmdbd has the cluster {taken.strip()} with the id {number} of this one: stop slurmctld, "
                    f"remove {plan.state_dir}/clustername, then `meshctl init --accounting` again"
                )
            await self._sql(f"UPDATE {table} SET id = {number} WHERE name = '{plan.cluster}'")  # noqa: S608

    async def restart_slurmctld(self, unit: str, cluster: str) -> bool:
        """Restart a slurmctld that runs, and wait until slurmdbd knows it; jobs go on. False where none runs.

        Raises:
            SlurmError: it did not come back.
        """
        active = await self._run(["systemctl", "is-active", "--quiet", unit], timeout_s=CALL_S, check=False)
        if active.returncode:
            return False
        await self._wait_for_saved_jobs()
        # systemd would not start a slurmctld that was started often in a short time.
        await self._run(["systemctl", "reset-failed", unit], timeout_s=CALL_S, check=False)
        await self._call("systemctl", "restart", unit)
        client = SlurmClient(self._run, CALL_S)
        await self._until(client.ping, START_S, "slurmctld does not answer")
        await self._until(lambda: _is_served(self._run, cluster), REGISTERED_S, "slurmctld does not reach slurmdbd")
        await client.reconfigure()  # machines get the new slurm.conf
        return True

    async def _wait_for_saved_jobs(self) -> None:
        """Wait until the last job start is in slurmctld's saved state: a restart before can lose the job."""
        client, end_s = SlurmClient(self._run, CALL_S), self._clock.monotonic_s() + JOB_SETTLE_MAX_S
        while self._clock.monotonic_s() < end_s:
            age_s = await client.youngest_job_s()
            if age_s is None or age_s >= JOB_SETTLE_S:
                return
            await self._clock.sleep(JOB_SETTLE_S - age_s)

    async def _make_database(self, user: str) -> None:
        # `start_services` has checked the name.
        login = await self._sql(f"SELECT plugin FROM mysql.user WHERE user = '{user}' AND host = 'localhost'")  # noqa: S608
        if login.strip() not in ("", "unix_socket") and user != "root":
            raise SlurmError(
                f"MariaDB has a user {user} already, who logs in by {login.strip()}: if nothing needs it, "
                f'mariadb -e "DROP USER {user}@localhost", then `meshctl init --accounting` again'
            )
        # In the name of a GRANT `_` would stand for any character.
        await self._sql(
            f"CREATE DATABASE IF NOT EXISTS `{DATABASE}`;"
            f"CREATE USER IF NOT EXISTS '{user}'@'localhost' IDENTIFIED VIA unix_socket;"
            f"GRANT ALL PRIVILEGES ON `{DATABASE.replace('_', chr(92) + '_')}`.* TO '{user}'@'localhost'"
        )

    async def _sql(self, text: str) -> str:
        """Run statements as MariaDB's root, whom Debian's lets in by the socket."""
        argv = ["mariadb", "--no-defaults", "--protocol=socket", "--user=root", "--batch", "--skip-column-names"]
        try:
            return (await self._run(argv, timeout_s=CALL_S, stdin=text.encode())).stdout
        except MeshdError as error:
            raise SlurmError(f"MariaDB refuses root at its socket: {error}") from error

    async def _call(self, *argv: str) -> None:
        try:
            await self._run(argv, timeout_s=START_UNITS_S)
        except MeshdError as error:
            raise SlurmError(f"{' '.join(argv)}: {error}") from error

    async def _until(self, there: Callable[[], Awaitable[bool]], timeout_s: float, what: str) -> None:
        end_s = self._clock.monotonic_s() + timeout_s
        while not await there():
            if self._clock.monotonic_s() > end_s:
                raise SlurmError(f"{what} within {timeout_s:g} s")
            await self._clock.sleep(POLL_S)


async def _clusters(run: Runner) -> set[str]:
    """The clusters that slurmdbd knows; empty where slurm.conf does not name it."""
    try:
        shown = await run(["sacctmgr", "-nP", "show", "cluster", "format=cluster"], timeout_s=CALL_S)
    except MeshdError:
        return set()
    return set(shown.stdout.split())


async def _is_served(run: Runner, cluster: str) -> bool:
    """Whether slurmctld has registered its port with slurmdbd."""
    try:
        shown = await run(["sacctmgr", "-nP", "show", "cluster", cluster, "format=controlport"], timeout_s=CALL_S)
    except CommandError:
        return False
    return shown.stdout.strip() not in ("", "0")


def _cluster_id(state_dir: Path, cluster: str) -> int:
    """The cluster's id in slurmctld's saved state; 0 where it has none. SlurmUser may have a fifo there."""
    try:
        fd = os.open(state_dir / "clustername", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            name, _, number = file.read(STATE_MAX_B).decode().strip().partition("|")
    except (OSError, UnicodeDecodeError):
        return 0
    valid = name.lower() == cluster and number.isdecimal() and 0 < int(number) <= CLUSTER_ID_MAX
    return int(number) if valid else 0


async def _listens(port: int) -> bool:
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
