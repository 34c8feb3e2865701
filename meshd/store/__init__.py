"""The journal in SQLite: what meshd knows, and each step before it is carried out."""
