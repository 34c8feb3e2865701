"""Partitions and slots that the settings no longer have, and that stay in Slurm while something names them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.reporting import problem
from meshd.errors import SlurmError
from meshd.model.observed import SlurmReservation, SlurmView
from meshd.runtime.clock import Clock
from meshd.slurm.client import SlurmClient
from meshd.slurm.nodes import PoolLine
from meshd.slurm.pools import read_pools
from meshd.slurm.retained import Retained, leaving_of, retain

ASK_AGAIN_S = 5.0
SHOWN_MAX = 20
"""The most job ids in a problem and its cure."""


class HeldLines:
    """What stays, and why. Slurm is asked for its reservations only while something is to leave.

    Args:
        client: Slurm.
        clock: for the pause between two questions.
    """

    def __init__(self, client: SlurmClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._reservations: tuple[SlurmReservation, ...] | None = None
        self._asked_s = float("-inf")
        self._leaves = False
        self.revision: object = object()
        """Another object after each answer: what was made from `lines` before may differ now."""
        self._retained: tuple[Retained, ...] = ()

    def lines(self, pools: Sequence[PoolLine], nodes_conf: str, view: SlurmView) -> tuple[PoolLine, ...] | None:
        """The pools with what must stay for now; None while Slurm was not asked yet.

        Args:
            pools: those of the settings.
            nodes_conf: the text in force.
            view: Slurm's nodes and jobs.

        Raises:
            SlurmError: the text in force cannot be read.
        """
        before = read_pools(nodes_conf)
        self._leaves = bool(leaving_of(pools, before))
        if not self._leaves:
            self._reservations, self._retained = None, ()
            return tuple(pools)
        if self._reservations is None:
            return None
        kept, self._retained = retain(pools, before, view.jobs, self._reservations)
        return kept

    async def ask(self) -> None:
        """Read the reservations, if something is to leave. Without an answer the last one stays, or nothing leaves."""
        now_s = self._clock.monotonic_s()
        if not self._leaves or now_s - self._asked_s < ASK_AGAIN_S:
            return
        self._asked_s = now_s
        try:
            self._reservations = await self._client.reservations()
        except SlurmError:
            return  # the source `slurm` tells it
        self.revision = object()

    def problems(self) -> Iterable[ProblemView]:
        """One for each pool of which something stays."""
        return [problem_of(part) for part in self._retained]


def problem_of(part: Retained) -> ProblemView:
    """What stays, why, and the commands that free it."""
    what = f"partition {part.partition}" if part.partition else ", ".join(part.slots[:SHOWN_MAX])
    names, cures = [], []
    if part.jobs:
        ids = part.jobs[:SHOWN_MAX]
        more = f" and {len(part.jobs) - len(ids)} more" if len(part.jobs) > len(ids) else ""
        names.append(f"jobs {', '.join(ids)}{more}")
        all_jobs = f"--state=PENDING --partition={part.partition}" if more and part.partition else " ".join(ids)
        cures.append(f"`scancel {all_jobs}`")
        if part.partition and part.other:
            cures.append(f"`scontrol update jobid={','.join(ids)} partition={part.other}`")
        elif not part.partition:
            cures.append(f"`scontrol update jobid={','.join(ids)} reqnodelist=`")
    if part.reservations:
        names.append(f"reservations {', '.join(part.reservations[:SHOWN_MAX])}")
        cures += [f"`scontrol delete reservationname={name}`" for name in part.reservations[:3]]
    text = (
        f"{what} is no longer in the settings, but {' and '.join(names)} name it: Slurm would end them, so it stays "
        "until they are gone; meshd rents nothing for it"
    )
    return problem(ProblemCode.POOL_LINES_KEPT, "warning", text, " or ".join(cures), pool=part.pool)
