"""Slurm's queue: the jobs of the pools' partitions and of the head."""

from __future__ import annotations

from meshd.api import schema as s
from meshd.daemon.head_api.state import HeadState
from meshd.daemon.head_api.status import HeadRow
from meshd.daemon.live_settings import LiveSettings
from meshd.model.ids import job_order
from meshd.model.observed import Fresh, SlurmJob


class JobService:
    """Answers JOBS, from what was read of Slurm last.

    Args:
        state: the last tick, and the jobs that wait for machines.
        live: the settings, for the partitions.
        head_node: how the head is as a node.
    """

    def __init__(self, state: HeadState, live: LiveSettings, head_node: HeadRow) -> None:
        self._state = state
        self._live = live
        self._head_node = head_node

    async def jobs(self, query: s.JobsQuery) -> s.JobsView:
        """Those that run first, then those that wait, each by id."""
        now, last = self._state.clock.now(), self._state.controller.last
        seen = last.snapshot.slurm if last else None
        if not isinstance(seen, Fresh):
            return s.JobsView(at=now)
        pools = {pool.partition or name: name for name, pool in self._live.settings.pools.items()}
        head = self._head_node.row(seen.value)
        ours = pools.keys() | set(head.partitions if head else ())
        found = [job for job in seen.value.jobs if ours & set(job.partition.split(","))]
        found.sort(key=lambda job: (not job.nodes, job_order(job.id)))
        words = {job.job: job.text for job in self._state.waiting()}
        return s.JobsView(
            at=now, read_at=seen.at, left_out=max(0, len(found) - query.limit),
            jobs=[_row(job, pools, words.get(job.id, "")) for job in found[: query.limit]],
        )  # fmt: skip


def _row(job: SlurmJob, pools: dict[str, str], words: str) -> s.JobRow:
    pool = next((pools[name] for name in job.partition.split(",") if name in pools), "")
    return s.JobRow(
        job=job.id, user=job.user, account=job.account, pool=pool, partition=job.partition, state=job.state,
        nodes=list(job.nodes), node_count=job.node_count or len(job.nodes), gpus=job.gpus, run_s=job.run_s,
        reason=words or ("" if job.nodes else job.state_reason),
    )  # fmt: skip
