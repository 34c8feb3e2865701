"""The database's forms, in order. `PRAGMA user_version` says which one a file has."""

from __future__ import annotations

import sqlite3

from meshd.errors import StoreError

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
        # Rows that could not be read, as they were.
        """CREATE TABLE unreadable (
            id INTEGER PRIMARY KEY, at TEXT NOT NULL, of_table TEXT NOT NULL, key TEXT NOT NULL,
            record TEXT NOT NULL, why TEXT NOT NULL) STRICT""",
    ),
    (
        "CREATE TABLE node_tokens (machine TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT",
        "CREATE TABLE token_renewals (id TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT",
    ),
)


def migrate(db: sqlite3.Connection) -> None:
    """Bring the database to the newest form, one transaction for each step.

    Raises:
        StoreError: the file was written by a newer meshd.
    """
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the journal has form {version}, this meshd knows up to {len(MIGRATIONS)}: install a newer meshd"
        )
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        with db:
            db.execute("BEGIN IMMEDIATE")
            for statement in statements:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {number}")
