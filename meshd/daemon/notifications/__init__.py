"""Tells people and programs of problems: `[notify.NAME]`."""
