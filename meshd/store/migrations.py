"""The schema of the journal's file, in steps. `PRAGMA user_version` is the number of steps that a file has had."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import LiteralString

from meshd.errors import StoreError

_TIMES: Mapping[LiteralString, LiteralString] = {
    "asked": "create_repeated_at",
    "unclear": "create_unclear_at",
    "start_slurmd": "slurmd_start_ordered_at",
    "slurmd_restarted": "slurmd_restarted_at",
    "drained": "drained_at",
    "agent_asked": "agent_asked_at",
    "asked_cloud": "cloud_asked_at",
    "terminate_called": "terminate_called_at",
    "key_expiry": "key_expiry_asked_at",
    "reached": "head_reached_at",
    "told_alive": "cloud_confirmed_at",
    "device_gone": "device_gone_since",
    "rebooting": "rebooting_since",
    "unreadable": "unreadable_since",
}
"""The fields of a machine that were marks before form 10, by mark."""


_REMOVALS: Mapping[LiteralString, LiteralString] = {"surplus": "scale_down", "moved": "gang_moved", "wanted": "by_user"}
"""Words for a machine's removal, before form 10 and since."""


def _set(where: LiteralString, value: LiteralString) -> LiteralString:
    """A statement that changes the records of machines: those that are JSON objects and meet a condition."""
    return (
        f"UPDATE machines SET record = {value} WHERE CASE WHEN json_valid(record) THEN "  # noqa: S608  # our own words
        f"json_type(record) = 'object' AND {where} ELSE 0 END"
    )


MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE machines (
            name TEXT PRIMARY KEY, pool TEXT NOT NULL, slot TEXT NOT NULL, provider TEXT NOT NULL,
            instance_id TEXT NOT NULL, phase TEXT NOT NULL, record TEXT NOT NULL) STRICT""",
        "CREATE INDEX machines_by_phase ON machines (phase)",
        "CREATE UNIQUE INDEX machines_by_instance ON machines (provider, instance_id) WHERE instance_id <> ''",
        """CREATE TABLE events (
            id INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, machine TEXT NOT NULL,
            kind TEXT NOT NULL, text TEXT NOT NULL, fields TEXT NOT NULL) STRICT""",
        "CREATE INDEX events_by_machine ON events (machine, id)",
        "CREATE TABLE targets (pool TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT",
        "CREATE TABLE blocks (key TEXT PRIMARY KEY, until TEXT NOT NULL, reason TEXT NOT NULL) STRICT",
        "CREATE TABLE joins (machine TEXT PRIMARY KEY, device_id TEXT NOT NULL, at TEXT NOT NULL) STRICT",
    ),
    (
        "ALTER TABLE blocks ADD COLUMN strikes INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE blocks ADD COLUMN cause TEXT NOT NULL DEFAULT 'refused'",
    ),
    ("CREATE TABLE munge_rotations (id TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT",),
    (
        "CREATE TABLE auth_rotations (id TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT",
        """CREATE TABLE auth_rotation_nodes (
            rotation TEXT NOT NULL REFERENCES auth_rotations (id), machine TEXT NOT NULL, record TEXT NOT NULL,
            PRIMARY KEY (rotation, machine)) STRICT""",
    ),
    (
        """CREATE TABLE machine_keys (
            machine TEXT NOT NULL, purpose TEXT NOT NULL, record TEXT NOT NULL,
            PRIMARY KEY (machine, purpose)) STRICT""",
    ),
    (
        # Before this form a join token could be used again by its device. Of machines that have proved munge, and so
        # have used their node token, it is closed.
        "ALTER TABLE joins ADD COLUMN closed_at TEXT NOT NULL DEFAULT ''",
        """UPDATE joins SET closed_at = at WHERE machine IN (
            SELECT name FROM machines WHERE phase NOT IN ('requested', 'launching', 'booting', 'joining', 'configuring')
            OR NOT json_valid(record)
            OR json_extract(record, '$.munge_ok') = 1 OR json_extract(record, '$.line_published') = 1)""",
    ),
    (
        "ALTER TABLE events ADD COLUMN origin INTEGER NOT NULL DEFAULT 0",
        "UPDATE events SET origin = 1 WHERE kind IN ('login', 'problem')",
        "UPDATE events SET origin = 2 WHERE kind IN ('target', 'remove', 'drain', 'undrain', 'rotation', 'munge_key')",
        "CREATE INDEX events_by_origin ON events (origin, id)",
    ),
    (
        # Rows that could not be read, unchanged.
        """CREATE TABLE unreadable (
            id INTEGER PRIMARY KEY, at TEXT NOT NULL, of_table TEXT NOT NULL, key TEXT NOT NULL,
            record TEXT NOT NULL, why TEXT NOT NULL) STRICT""",
    ),
    (
        "CREATE TABLE node_tokens (machine TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT",
        "CREATE TABLE token_renewals (id TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT",
    ),
    (
        # A machine's times were in an object `marks`, under names; its removal had other words. Marks that are no
        # object were told as an unreadable record, and the machine was held: it still is.
        *(
            _set(
                f"json_type(record, '$.marks.{mark}') IS NOT NULL",
                f"json_set(record, '$.{field}', json_extract(record, '$.marks.{mark}'))",
            )
            for mark, field in _TIMES.items()
        ),
        _set(
            "EXISTS (SELECT 1 FROM json_each(record, '$.marks') WHERE key LIKE 'unfit:%')",
            "json_set(record,"
            " '$.unfit_reason', (SELECT substr(key, 7) FROM json_each(record, '$.marks') WHERE key LIKE 'unfit:%'),"
            " '$.unfit_since', (SELECT value FROM json_each(record, '$.marks') WHERE key LIKE 'unfit:%'))",
        ),
        _set(
            "json_type(record, '$.marks') <> 'object'",
            "json_set(record, '$.unreadable_since', strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))",
        ),
        _set("json_type(record, '$.marks') IS NOT NULL", "json_remove(record, '$.marks')"),
        _set("json_extract(record, '$.removal') = ''", "json_set(record, '$.removal', NULL)"),
        *(
            _set(f"json_extract(record, '$.removal') = '{old}'", f"json_set(record, '$.removal', '{new}')")
            for old, new in _REMOVALS.items()
        ),
    ),
    ("CREATE TABLE promises (pool TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT",),
    (
        # Times are microseconds since 1970, money is millionths of a USD.
        """CREATE TABLE lives (
            machine TEXT NOT NULL, pool TEXT NOT NULL, slot TEXT NOT NULL, provider TEXT NOT NULL,
            region TEXT NOT NULL, instance_type TEXT NOT NULL, instance_id TEXT NOT NULL, spot INTEGER NOT NULL,
            gpus INTEGER NOT NULL, vcpus INTEGER NOT NULL, micros_per_hour INTEGER NOT NULL, since INTEGER NOT NULL,
            until INTEGER, end_asked_at INTEGER, shown INTEGER NOT NULL, increment_s REAL NOT NULL,
            minimum_s REAL NOT NULL, part INTEGER NOT NULL, PRIMARY KEY (machine, part)) STRICT""",
        "CREATE INDEX lives_by_end ON lives (until)",
        """CREATE TABLE job_uses (
            job TEXT NOT NULL, slot TEXT NOT NULL, since INTEGER NOT NULL, until INTEGER, user TEXT NOT NULL,
            account TEXT NOT NULL, name TEXT NOT NULL, gpus INTEGER NOT NULL, cpus INTEGER NOT NULL,
            PRIMARY KEY (job, slot, since)) STRICT""",
        "CREATE INDEX job_uses_by_end ON job_uses (until)",
        """CREATE TABLE ledger_pruned (
            pool TEXT NOT NULL, provider TEXT NOT NULL, micros INTEGER NOT NULL,
            PRIMARY KEY (pool, provider)) STRICT""",
    ),
    (
        # What jobs have cost in all until a moment: for the counters of the metrics.
        """CREATE TABLE job_costs (
            pool TEXT NOT NULL, account TEXT NOT NULL, user TEXT NOT NULL, micros INTEGER NOT NULL,
            PRIMARY KEY (pool, account, user)) STRICT""",
        "CREATE TABLE job_costs_until (one INTEGER PRIMARY KEY CHECK (one = 1), at INTEGER NOT NULL) STRICT",
    ),
    ("CREATE TABLE hosts (name TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT",),
    ("CREATE TABLE bakes (name TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT",),
    # At most one row, "meshd": while it is there, meshd is frozen.
    ("CREATE TABLE freezes (name TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT",),
    (
        # Of the web page's plots. A few thousand rows; `at` is in seconds since 1970.
        """CREATE TABLE samples (
            step_s INTEGER NOT NULL, at INTEGER NOT NULL, record TEXT NOT NULL, PRIMARY KEY (step_s, at)) STRICT""",
    ),
    ("CREATE TABLE told_receivers (name TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT",),
    # At most one row, "meshd": an older journal was restored, and not all clouds were listed since.
    ("CREATE TABLE restores (name TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT",),
)


def form(db: sqlite3.Connection) -> int:
    """How many steps the file has had; 0 for a new one."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def migrate(db: sqlite3.Connection) -> None:
    """Bring the database to the newest form: in one transaction, so that it is never between two versions of meshd.

    Raises:
        StoreError: the file was written by a newer meshd.
    """
    version = form(db)
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the journal has form {version}, this meshd knows up to {len(MIGRATIONS)}: install a newer meshd, "
            "or put back the copy from before the upgrade: `meshctl restore /var/lib/meshd/journal.db.form-N`"
        )
    if version == len(MIGRATIONS):
        return
    with db:
        db.execute("BEGIN IMMEDIATE")
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
