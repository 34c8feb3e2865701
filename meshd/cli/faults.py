"""Faults of the settings as rows of a check, each with its place in the file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from meshd.api.schema import CheckRow
from meshd.config import File
from meshd.errors import ConfigError, Fault


def rows(file: File, faults: Iterable[Fault], about: str = "") -> list[CheckRow]:
    """A row for each; `about` is what they are about, where no line of the file tells."""
    return [_row(str(file.path), fault, about) for fault in file.placed(faults)]


def rows_of(error: ConfigError, file: File | None = None) -> list[CheckRow]:
    """The rows of settings, or of a secret's file, that cannot be used."""
    faults = file.placed(error.faults) if file is not None else error.faults
    return [_row(error.source, fault, "") for fault in faults]


def row_of(path: Path, text: str, cure: str) -> CheckRow:
    """A row about another file."""
    return CheckRow(name=str(path), status="fail", text=text, cure=cure)


def _row(source: str, fault: Fault, about: str) -> CheckRow:
    name = f"{source}:{fault.line}" if fault.line else about or source
    text = f"{about}: {fault.text}" if about and fault.line and not fault.text.startswith(about) else fault.text
    return CheckRow(name=name, status="fail", text=text, cure=fault.cure)
