"""What `meshctl simulate` shows."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from meshd.cli.render.table import Table
from meshd.cli.render.terminal import clean_text
from meshd.plaintext import age, counted
from meshd.simulate.schema import ComparisonView, PoolRow, SimulationView
from meshd.simulate.waits import WORDS

_POOLS = (
    "POOL", "JOBS", "STARTED", "AGAIN", "WAIT MEDIAN", "90 %", "LONGEST", "MACHINES", "AT ONCE", "MACHINE-H", "USED",
    "USD",
)  # fmt: skip
_OPTIONAL = ("AGAIN", "AT ONCE", "MACHINES", "90 %")


def simulation(view: SimulationView) -> list[RenderableType]:
    """Pools, what was rented, and what was left out."""
    parts: list[RenderableType] = [Table(_POOLS, [_pool(row) for row in _rows(view)], optional=_OPTIONAL)]
    if view.rented:
        kinds = [
            (
                row.provider, row.region, row.instance_type, "spot" if row.spot else "", str(row.machines),
                f"{row.machine_hours:.1f}", f"{row.usd:.2f}",
            )
            for row in view.rented
        ]  # fmt: skip
        headers = ("PROVIDER", "REGION", "TYPE", "KIND", "MACHINES", "MACHINE-H", "USD")
        parts += ["", Table(headers, kinds, optional=("KIND",))]
    return [*parts, "", *_notes(view)]


def _rows(view: SimulationView) -> list[PoolRow]:
    whole = view.all_pools.model_copy(update={"pool": "all"})
    return [*view.pools, whole] if len(view.pools) > 1 else view.pools


def _pool(row: PoolRow) -> tuple[str, ...]:
    used = f"{row.job_node_hours / row.machine_hours:.0%}" if row.machine_hours else "-"
    return (
        row.pool, str(row.jobs), str(row.started), str(row.restarted), _age(row.wait_median_s), _age(row.wait_p90_s),
        _age(row.wait_max_s), str(row.machines), str(row.machines_peak), f"{row.machine_hours:.1f}", used,
        f"{row.usd:.2f}",
    )  # fmt: skip


def _waited(pool: PoolRow) -> str:
    total_s = sum(row.job_s for row in pool.waited)
    return ", ".join(f"{row.job_s / total_s:.0%} {WORDS[row.code]}" for row in pool.waited)


def _age(seconds: float | None) -> str:
    return "-" if seconds is None else age(seconds)


def _notes(view: SimulationView) -> Iterator[Text]:
    yield clean_text(f"simulated: {age(view.simulated_s)}, seed {view.seed}")
    for pool in view.pools:
        if pool.waited:
            yield clean_text(f"jobs of {pool.pool} waited: {_waited(pool)}")
    if view.orders_refused:
        yield clean_text(f"orders without capacity: {view.orders_refused}")
    if view.taken_back:
        yield clean_text(f"spot machines that their cloud took back: {view.taken_back}")
    for row in view.never:
        yield clean_text(f"{counted(row.count, 'job')} can never run: {row.text}", "yellow")
    if not view.all_pools.jobs and not view.never:
        yield clean_text("there are no jobs", "yellow")
    for row in view.left_out:
        yield clean_text(f"left out: {row.count} {row.text}")
    for text in view.priced:
        yield clean_text(f"prices: {text}")


def comparison(view: ComparisonView) -> list[RenderableType]:
    """Both settings side by side, pool by pool."""
    one, other = view.first, view.second
    pools = dict.fromkeys([*(row.pool for row in one.pools), *(row.pool for row in other.pools)])
    headers = ("POOL", "", "FIRST", "SECOND", "CHANGE")
    rows: list[tuple[str, ...]] = []
    for name in [*pools, ""]:
        first = _row_of(one, name)
        second = _row_of(other, name)
        if name == "" and len(pools) == 1:
            continue
        rows += [
            (
                name or "all",
                "jobs started",
                str(first.started),
                str(second.started),
                f"{second.started - first.started:+}",
            ),
            (
                "",
                "wait, median",
                _age(first.wait_median_s),
                _age(second.wait_median_s),
                _change(first.wait_median_s, second.wait_median_s),
            ),
            (
                "",
                "wait, 90 %",
                _age(first.wait_p90_s),
                _age(second.wait_p90_s),
                _change(first.wait_p90_s, second.wait_p90_s),
            ),
            (
                "",
                "machine-hours",
                f"{first.machine_hours:.1f}",
                f"{second.machine_hours:.1f}",
                _change(first.machine_hours, second.machine_hours),
            ),
            ("", "USD", f"{first.usd:.2f}", f"{second.usd:.2f}", _change(first.usd, second.usd)),
        ]
    parts: list[RenderableType] = [
        clean_text(f"first: {one.settings}"), clean_text(f"second: {other.settings}"), "", Table(headers, rows), "",
    ]  # fmt: skip
    parts += [*_notes(one)]
    if list(map(str, _notes(other))) != list(map(str, _notes(one))):
        parts += [clean_text("second:"), *_notes(other)]
    return parts


def _row_of(view: SimulationView, pool: str) -> PoolRow:
    if not pool:
        return view.all_pools
    return next((row for row in view.pools if row.pool == pool), PoolRow(pool=pool))


def _change(first: float | None, second: float | None) -> str:
    if first is None or second is None or not first:
        return "-"
    return f"{(second - first) / first:+.0%}"
