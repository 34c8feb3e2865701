"""I/O: which jobs had which nodes, and when: by Slurm's records where slurmdbd keeps them, else by slurmctld's memory.

slurmctld forgets a job MinJobAge after its end (300 s by default); its records are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from meshd.errors import MeshdError, SlurmError
from meshd.model.ledger import JobUse
from meshd.runtime.run import Runner
from meshd.slurm.listing import SEPARATOR, lines_of, new_mark, squeue_env
from meshd.slurm.show import gpus_of, hostlist

SQUEUE_FIELDS = (
    "JobArrayID", "UserName", "Account", "Name", "State", "StartTime", "EndTime", "NodeList", "NumNodes", "NumCPUs",
    "tres-alloc",
)  # fmt: skip
SACCT_FIELDS = (
    "JobID", "User", "Account", "JobName", "State", "Start", "End", "NodeList", "NNodes", "AllocCPUS", "AllocTRES",
)  # fmt: skip

HAD_NODES = "R,S,ST,CG,CD,CA,F,TO,NF,BF,DL,OOM,PR,RV,SI,RS,SO"
"""The states of jobs that have or had nodes (squeue(1), "JOB STATE CODES")."""
GOES_ON = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"})
"""In these states the time that Slurm shows as the end is the one by which the job has to end."""
WAITS = frozenset({"CONFIGURING", "PENDING"})

OVERLAP = timedelta(hours=1)
"""Records are read again from so long before the last reading: slurmctld may send them late."""


@dataclass(frozen=True, slots=True)
class JobRecords:
    """One reading.

    Attributes:
        whole: the reading has all jobs that ended since the last one, however long ago that was.
    """

    uses: tuple[JobUse, ...]
    whole: bool


class JobRecordReader:
    """Reads them.

    Args:
        run: runs programs.
        timeout_s: for one program.
    """

    def __init__(self, run: Runner, timeout_s: float) -> None:
        self._run = run
        self._timeout_s = timeout_s

    async def read(self, since: datetime, *, records: bool) -> JobRecords:
        """What jobs have, and had since `since`.

        Args:
            since: of jobs that ended before nothing is read.
            records: Slurm keeps records. Where they cannot be read, slurmctld's memory is.

        Raises:
            SlurmError: nothing can be read.
        """
        mark = new_mark()
        if records:
            begin = f"{(since - OVERLAP).astimezone():%Y-%m-%dT%H:%M:%S}"
            argv = [
                "sacct", "-a", "-X", "-D", "-n", "-p", f"--delimiter={mark}", "-S", begin,
                f"--format={','.join(SACCT_FIELDS)}",
            ]  # fmt: skip
            try:
                text = lines_of(await self._text(argv), mark, len(SACCT_FIELDS))
                return JobRecords(tuple(parse_uses(text)), whole=True)
            except SlurmError:
                pass  # slurmdbd is away, which is a problem of its own; slurmctld knows the present jobs
        argv = ["squeue", "-h", "-a", "-r", "-t", HAD_NODES]
        text = lines_of(await self._text(argv, squeue_env(SQUEUE_FIELDS, mark)), mark, len(SQUEUE_FIELDS))
        return JobRecords(tuple(parse_uses(text)), whole=False)

    async def _text(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> str:
        try:
            return (await self._run(argv, timeout_s=self._timeout_s, env=env)).stdout
        except MeshdError as error:
            raise SlurmError(f"{argv[0]}: {error}") from error


def parse_uses(text: str) -> Iterator[JobUse]:
    """Parse what squeue or sacct print, as `listing.lines_of` gives it: one use for each node of each job.

    Jobs that have not begun are left out. A line that is no job is none: who used a machine is worth no failure.
    """
    for line in text.split("\n"):
        parts = [part.strip() for part in line.split(SEPARATOR)]
        if len(parts) not in (len(SQUEUE_FIELDS), len(SQUEUE_FIELDS) + 1):
            continue
        job, user, account, name, state, start, end, nodes, *numbers = parts
        since, until = _local(start), _local(end)
        state = state.split()[0].upper() if state else ""
        if not job or since is None or state in WAITS or not nodes or nodes in ("(null)", "None assigned"):
            continue
        if state in GOES_ON:
            until = None
        elif until is None:
            continue  # it never had its nodes
        try:
            slots = hostlist(nodes)
        except SlurmError:
            continue
        count = max(1, len(slots))
        cpus = int(numbers[1]) if numbers[1].isdigit() else 0
        for slot in slots:
            yield JobUse(
                job, slot, user, "" if account == "(null)" else account, name, since, until,
                gpus_of(numbers[2]) // count, cpus // count,
            )  # fmt: skip


def _local(text: str) -> datetime | None:
    """A time in the head's time zone, as UTC; None for `Unknown`, `N/A` and the like."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return None
