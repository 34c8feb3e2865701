"""Samples of the cluster over time, in the journal: a few thousand rows, whatever happens."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from pydantic import TypeAdapter

from meshd.plan.samples import KEPT, MINUTE_S, Figure, Mean, Means, Sample, begin, joined
from meshd.store.journal import Journal

_RECORD: Final = TypeAdapter(dict[str, tuple[float, int]])


class Samples:
    """All methods raise StoreError when the journal cannot be read or written."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def last(self, now: datetime) -> datetime | None:
        """The minute of the newest sample that is not in the future; None where there is none."""
        rows = self._journal.rows(
            "SELECT max(at) FROM samples WHERE step_s = ? AND at <= ?", MINUTE_S, int(now.timestamp())
        )
        return datetime.fromtimestamp(rows[0][0], UTC) if rows[0][0] is not None else None

    def add(self, at: datetime, means: Means) -> None:
        """Write the sample of a minute, also into the longer stretches that it is a part of; the oldest ones go.

        Samples later than `at` go too: the clock was wrong when they were written.
        """
        found = {step_s: dict[Figure, Mean](means) for step_s in KEPT}
        for step_s in KEPT:
            if step_s != MINUTE_S:
                begun = begin(at, step_s)
                for known in self._read(step_s, begun, begun):
                    found[step_s] = dict(joined(known.means, means))
        with self._journal.writing() as db:
            for step_s, kept in KEPT.items():
                record = {figure.value: (mean.total, mean.count) for figure, mean in found[step_s].items()}
                db.execute("DELETE FROM samples WHERE step_s = ? AND at > ?", (step_s, int(at.timestamp())))
                db.execute(
                    "INSERT OR REPLACE INTO samples (step_s, at, record) VALUES (?,?,?)",
                    (step_s, int(begin(at, step_s).timestamp()), _RECORD.dump_json(record).decode()),
                )
                db.execute(
                    "DELETE FROM samples WHERE step_s = ?1 AND at < "
                    "(SELECT at FROM samples WHERE step_s = ?1 ORDER BY at DESC LIMIT 1 OFFSET ?2)",
                    (step_s, kept - 1),
                )

    def read(self, step_s: int, since: datetime, until: datetime) -> list[Sample]:
        """The samples of a length that begin between two times, oldest first."""
        return self._read(step_s, since, until)

    def _read(self, step_s: int, since: datetime, until: datetime) -> list[Sample]:
        rows = self._journal.rows(
            "SELECT rowid, at, record FROM samples WHERE step_s = ? AND at BETWEEN ? AND ? ORDER BY at LIMIT 5000",
            step_s, int(since.timestamp()), int(until.timestamp()),
        )  # fmt: skip
        named = ((rowid, f"{at}", record) for rowid, at, record in rows)
        found = self._journal.unreadable.sift("samples", named, _means)
        return [Sample(datetime.fromtimestamp(int(at), UTC), means) for at, means in found]


def _means(record: str) -> Means:
    """The figures of a record. Those that this meshd does not know are left out. Raises ValueError."""
    found = _RECORD.validate_json(record)
    if any(count < 1 for _, count in found.values()):
        raise ValueError("a mean of no values")
    return {figure: Mean(*found[figure.value]) for figure in Figure if figure.value in found}
