"""What `meshctl simulate -o json` prints."""

from __future__ import annotations

from meshd.api.schema.base import Document, Part


class WaitRow(Part):
    """For what jobs of a pool waited.

    Attributes:
        code: nodes_taken, boot, requeued, or why no machine could be had, as in `meshctl explain -o json`.
        job_s: so long, over all jobs; before a run that was lost, too.
    """

    code: str
    job_s: int


class PoolRow(Part):
    """A pool, or all of them.

    Attributes:
        pool: "" for all.
        jobs: that came.
        started: that got their nodes at some time.
        restarted: that ran more than once, since their machines ended.
        wait_mean_s, wait_median_s, wait_p90_s, wait_max_s: from the submit to the first start; None when none started.
        machines: that were rented.
        machines_peak: the most at once; of all pools the sum of their peaks.
        machine_hours: that are billed.
        job_node_hours: that jobs used of them.
        usd: what is billed.
        waited: for what its jobs waited, the most first; empty for all pools.
    """

    pool: str
    jobs: int = 0
    started: int = 0
    restarted: int = 0
    wait_mean_s: float | None = None
    wait_median_s: float | None = None
    wait_p90_s: float | None = None
    wait_max_s: float | None = None
    machines: int = 0
    machines_peak: int = 0
    machine_hours: float = 0.0
    job_node_hours: float = 0.0
    usd: float = 0.0
    waited: list[WaitRow] = []


class KindRow(Part):
    """Machines of one kind."""

    provider: str
    region: str
    instance_type: str
    spot: bool = False
    machines: int = 0
    machine_hours: float = 0.0
    usd: float = 0.0


class TroubleRow(Part):
    """Something that was left out, and how often."""

    text: str
    count: int


class SimulationView(Document):
    """What would be rented, how long jobs would wait, and what would be paid.

    Attributes:
        settings: the settings file.
        simulated_s: how long the simulated time was.
        never: jobs of the load that cannot run with these settings, by why.
        left_out: lines of the dump that are no job of the load, by why.
        orders_refused: create calls that found no capacity.
        taken_back: spot machines that their cloud took back.
        priced: where the prices come from, and of when they are.
    """

    settings: str = ""
    simulated_s: int = 0
    seed: int = 0
    pools: list[PoolRow] = []
    all_pools: PoolRow = PoolRow(pool="")
    rented: list[KindRow] = []
    never: list[TroubleRow] = []
    left_out: list[TroubleRow] = []
    orders_refused: int = 0
    taken_back: int = 0
    priced: list[str] = []


class ComparisonView(Document):
    """Two settings under the same load and the same chance."""

    first: SimulationView
    second: SimulationView
