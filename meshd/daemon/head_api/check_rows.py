"""Rows of `meshctl doctor`."""

from __future__ import annotations

from meshd.api.schema import CheckRow


def ok(name: str, text: str) -> CheckRow:
    """All is well."""
    return CheckRow(name=name, status="ok", text=text)


def warn(name: str, text: str, cure: str) -> CheckRow:
    """It works, and should be looked at."""
    return CheckRow(name=name, status="warn", text=text, cure=cure)


def fail(name: str, text: str, cure: str) -> CheckRow:
    """It does not work."""
    return CheckRow(name=name, status="fail", text=text, cure=cure)
