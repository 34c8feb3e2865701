"""I/O: queries and changes of slurmctld through Slurm's own commands.

A query that fails raises SlurmError: the caller then knows nothing, and must not conclude that a node or job is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from meshd.errors import CommandError, CommandNotFound, CommandTimeout, MeshdError, SlurmError
from meshd.model.observed import SlurmNode, SlurmReservation, SlurmView
from meshd.runtime.run import Runner
from meshd.slurm.capabilities import SlurmCapabilities, SlurmVersion, capabilities, parse_version
from meshd.slurm.changes import SlurmChanges
from meshd.slurm.head_programs import prolog_timeout_s, starts_at_once
from meshd.slurm.listing import lines_of, new_mark, squeue_env
from meshd.slurm.power_saving import PowerSaving, power_saving
from meshd.slurm.show import (
    JOB_FIELDS,
    accounting_host,
    auth_type,
    cluster_name,
    dbd_queue,
    gpus_closed,
    node_settings,
    parse_jobs,
    parse_nodes,
    parse_reservations,
    ping_says_up,
    slurm_user,
    slurmctld_version_text,
    task_prolog,
    youngest_job_s,
)

PING_TIMEOUT_S = 5.0
POWER_SAVING_S = 5.0
"""How long what was read of power saving is believed."""


@dataclass(frozen=True, slots=True)
class Accounting:
    """What slurmdbd says.

    Attributes:
        waiting: messages that slurmctld keeps for it.
        registered: slurmctld has given it its port.
        error: why it does not answer; "" when it does.
    """

    host: str
    cluster: str
    waiting: int
    registered: bool = False
    error: str = ""


class SlurmClient(SlurmChanges):
    """Runs Slurm's commands. Safe to use from several tasks at once; it holds no lock."""

    def __init__(self, run: Runner, timeout_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """Run every command with `run`, and end it after `timeout_s` seconds."""
        self._run = run
        self._timeout_s = timeout_s
        self._monotonic_s = monotonic_s
        self._power: tuple[float, PowerSaving] | None = None
        self._version: SlurmVersion | None = None
        self._slurm_user = "root"
        self._config: asyncio.Future[str] | None = None

    async def version(self) -> SlurmVersion:
        """The version of slurmctld itself. Read again after each failed command: an upgrade may be the cause.

        Raises:
            SlurmError: slurmctld does not answer.
        """
        if self._version is None:
            text = await self._call(["scontrol", "show", "config"])
            self._version, self._slurm_user = parse_version(slurmctld_version_text(text)), slurm_user(text)
        return self._version

    async def auth_type(self) -> str:
        """How Slurm's messages are authenticated, e.g. "auth/munge".

        Raises:
            SlurmError: slurmctld does not answer.
        """
        return auth_type(await self._call(["scontrol", "show", "config"]))

    async def gpus_closed(self) -> bool:
        """Whether slurmd keeps a job from the GPUs of other jobs.

        Raises:
            SlurmError: slurmctld does not answer.
        """
        return gpus_closed(await self._call(["scontrol", "show", "config"]))

    async def task_prolog(self) -> str:
        """The program that slurmd runs before each task of a job; "" for none.

        Raises:
            SlurmError: slurmctld does not answer.
        """
        return task_prolog(await self._call(["scontrol", "show", "config"]))

    async def keeps_records(self) -> bool:
        """Whether slurmdbd keeps records of jobs.

        Raises:
            SlurmError: slurmctld does not answer.
        """
        return bool(accounting_host(await self._call(["scontrol", "show", "config"])))

    async def accounting(self) -> Accounting | None:
        """The state of slurmdbd; None where Slurm keeps no records.

        Raises:
            SlurmError: slurmctld does not answer.
        """
        config = await self._call(["scontrol", "show", "config"])
        host, cluster = accounting_host(config), cluster_name(config)
        if not host:
            return None
        waiting = dbd_queue(await self._call(["sdiag"]))
        try:
            argv = ["sacctmgr", "-nP", "show", "cluster", cluster, "format=controlport"]
            shown = (await self._run(argv, timeout_s=min(PING_TIMEOUT_S, self._timeout_s))).stdout
        except MeshdError as error:
            return Accounting(host, cluster, waiting, error=str(error))
        return Accounting(host, cluster, waiting, registered=shown.strip() not in ("", "0"))

    async def node_settings(self) -> dict[str, str]:
        """Settings of slurmd that a machine's kernel may not allow, as the running slurmctld has them.

        Callers at the same time share one command: many machines may start slurmd at once.

        Raises:
            SlurmError: slurmctld does not answer.
        """
        if self._config is None or self._config.done():
            self._config = asyncio.ensure_future(self._call(["scontrol", "show", "config"]))
        return node_settings(await asyncio.shield(self._config))

    async def capabilities(self) -> SlurmCapabilities:
        """What the running slurmctld can do.

        Raises:
            SlurmError: it does not answer, or is too old.
        """
        return capabilities(await self.version())

    async def view(self) -> SlurmView:
        """Nodes and jobs. Nodes are read first: a job that ends in between is still seen on its node.

        Raises:
            SlurmError: one of the queries failed or cannot be read.
        """
        version = await self.version()
        power = await self.power_saving()
        nodes = await self.nodes()
        jobs = parse_jobs(await self._queue())
        return SlurmView(
            version=str(version), nodes=nodes, jobs=jobs, slurm_user=self._slurm_user, power_saving=power.on,
            suspend_exc=power.stays(nodes),
        )  # fmt: skip

    async def power_saving(self) -> PowerSaving:
        """Slurm's power saving. Read again every few seconds: who reconfigures or restarts slurmctld may change it.

        Raises:
            SlurmError: slurmctld does not answer, or its answer cannot be read.
        """
        now_s = self._monotonic_s()
        if self._power is None or now_s - self._power[0] >= POWER_SAVING_S:
            self._power = now_s, power_saving(await self._call(["scontrol", "show", "config"]))
        return self._power[1]

    async def starts_at_once(self) -> bool:
        """Whether a job starts as soon as its nodes are up: slurmctld has meshd's PrologSlurmctld.

        Raises:
            SlurmError: slurmctld does not answer.
        """
        return starts_at_once(await self._call(["scontrol", "show", "config"]))

    async def prolog_timeout_s(self) -> float | None:
        """After how long slurmctld ends a PrologSlurmctld; None: never.

        Raises:
            SlurmError: slurmctld does not answer.
        """
        return prolog_timeout_s(await self._call(["scontrol", "show", "config"]))

    async def nodes(self) -> dict[str, SlurmNode]:
        """The nodes, by name.

        Raises:
            SlurmError: the query failed or cannot be read.
        """
        return parse_nodes(await self._call(["scontrol", "show", "nodes", "-o"]))

    async def reservations(self) -> tuple[SlurmReservation, ...]:
        """Every reservation.

        Raises:
            SlurmError: the query failed or cannot be read.
        """
        return parse_reservations(await self._call(["scontrol", "show", "reservation", "-o"]))

    async def youngest_job_s(self) -> int | None:
        """Seconds since the last job start; None when no job runs.

        Raises:
            SlurmError: squeue failed.
        """
        return youngest_job_s(await self._queue())

    async def ping(self) -> bool:
        """Whether slurmctld answers. A slurmctld that is down gives False, not an error.

        Raises:
            SlurmError: scontrol is missing or its answer cannot be read.
        """
        try:
            result = await self._run(["scontrol", "ping"], timeout_s=min(PING_TIMEOUT_S, self._timeout_s), check=False)
        except CommandTimeout:
            return False
        except CommandNotFound as error:
            raise SlurmError(str(error)) from error
        return ping_says_up(result.stdout + result.stderr)

    async def reconfigure(self) -> None:
        """Make slurmctld read its files again.

        Check first what the version allows, and verify the result afterwards.

        Raises:
            SlurmError: slurmctld refused, or did not answer in time; after a timeout it may still have reconfigured.
        """
        self._power = None
        await self._call(["scontrol", "reconfigure"])

    async def _queue(self) -> str:
        mark = new_mark()
        text = await self._call(["squeue", "-h", "-a", "-r"], squeue_env(JOB_FIELDS, mark))
        return lines_of(text, mark, len(JOB_FIELDS))

    async def _call(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> str:
        try:
            return (await self._run(argv, timeout_s=self._timeout_s, env=env)).stdout
        except CommandError as error:
            self._version = self._power = None
            raise SlurmError(f"{' '.join(argv[:2])}: {error.stderr.strip()[-1000:] or error}") from error
        except (CommandTimeout, CommandNotFound) as error:
            self._version = self._power = None
            raise SlurmError(str(error)) from error
