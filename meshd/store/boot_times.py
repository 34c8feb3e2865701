"""How long machines took from their create call until they were READY, from the journal."""

from __future__ import annotations

from meshd.plan.waiting import BootTime
from meshd.store.events import moment
from meshd.store.journal import Journal

LOOK_BACK = 500
"""The number of newest machines that count."""
TOOK_MAX_S = 3600.0


def boot_times(journal: Journal) -> tuple[BootTime, ...]:
    """Of the newest machines that became READY, newest first. Raises StoreError when the journal cannot be read."""
    rows = journal.rows(
        "SELECT provider, json_extract(record, '$.offer.instance_type'), json_extract(record, '$.launch_called_at'), "
        "json_extract(record, '$.ready_at') FROM (SELECT provider, record FROM machines WHERE json_valid(record) "
        "ORDER BY rowid DESC LIMIT ?)",
        LOOK_BACK,
    )
    found = []
    for provider, instance_type, called_at, ready_at in rows:
        if not (isinstance(called_at, str) and isinstance(ready_at, str) and isinstance(instance_type, str)):
            continue
        try:
            took_s = (moment(ready_at) - moment(called_at)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            continue  # a damaged record is reported when it is read as a machine
        if 0 < took_s <= TOOK_MAX_S:
            found.append(BootTime(str(provider), instance_type, took_s))
    return tuple(found)
