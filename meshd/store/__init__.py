"""The journal: what meshd knows and means to do, in SQLite, written before it is done."""
