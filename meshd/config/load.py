"""Reads the settings file. Reports all faults at once, each with its line, its value and the allowed values."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from meshd.codes import FaultCode
from meshd.config import checks
from meshd.config.models import DEFAULT_PATH, Settings
from meshd.errors import ConfigError, Fault
from meshd.secret_signs import names_secret, sign_of
from meshd.settings_words import fault_of, misplaced_truth
from meshd.toml_places import Places

_LINE_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True)
class File:
    """A settings file, parsed as TOML.

    Attributes:
        mode: the file's permission bits.
    """

    path: Path
    table: dict[str, Any]
    places: Places
    mode: int

    def placed(self, faults: Iterable[Fault]) -> list[Fault]:
        """The faults with their lines, in the file's order. A value from the environment gets its variable's name."""
        found = [self._placed(fault) for fault in faults]
        return sorted(found, key=lambda fault: fault.line)

    def _placed(self, fault: Fault) -> Fault:
        variable = _variable_of(fault.key)
        if variable:
            return replace(fault, text=f"{variable}: {fault.text}")
        return fault if fault.line else replace(fault, line=self.places.line(fault.key))


def load(path: Path = DEFAULT_PATH) -> Settings:
    """Read the settings.

    Raises:
        ConfigError: with all faults: an unreadable file, bad TOML (line and column), unknown keys, wrong types and
            values, values that Slurm cannot take, and tables that contradict each other. No fault shows a secret.
    """
    return parse(read(path))


def parse(file: File) -> Settings:
    """Validate a parsed file. Raises ConfigError as `load` does."""
    wrong = list(misplaced_truth(file.table, Settings))
    try:
        settings = Settings(**file.table)
    except ValidationError as error:
        wrong += [fault_of(one, Settings) for one in error.errors(include_url=False)]
        raise ConfigError(str(file.path), file.placed(wrong)) from None
    except SettingsError as error:
        # A variable for a whole table has to be JSON. Its text stays out of the message: it may hold a secret.
        raise ConfigError("environment", [f"a MESHD_ variable cannot be read: {_variable(error)}"]) from None
    wrong += checks.faults(settings)
    if wrong:
        raise ConfigError(str(file.path), file.placed(wrong))
    return settings


def read(path: Path) -> File:
    """Parse a file as TOML, without validation.

    Raises:
        ConfigError: it cannot be read, or is not TOML.
    """
    source = str(path)
    try:
        raw, mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError as error:
        cure = "`deploy/head/install` writes an example; or name another file with --config"
        raise ConfigError(source, [Fault("there is no such file", cure, code=FaultCode.FILE_MISSING)]) from error
    except IsADirectoryError as error:
        raise ConfigError(
            source, [Fault("is a directory", "name the file in it", code=FaultCode.FILE_UNREADABLE)]
        ) from error
    except PermissionError as error:
        cure = f"it holds no secrets, so everybody may read it: `chmod 0644 {path}`; or run this as root"
        raise ConfigError(
            source, [Fault(f"cannot be read by this user{_owned(path)}", cure, code=FaultCode.FILE_UNREADABLE)]
        ) from error
    except OSError as error:
        raise ConfigError(
            source, [Fault(f"cannot be read: {error.strerror}", code=FaultCode.FILE_UNREADABLE)]
        ) from error
    try:
        text = raw.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            source, [Fault("is not UTF-8 text", "save it as UTF-8", line=line, code=FaultCode.NOT_TOML)]
        ) from None
    try:
        return File(path, tomllib.loads(text), Places(text), mode)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(source, [_syntax(text, str(error))]) from None
    except RecursionError:
        raise ConfigError(source, [Fault("is nested too deeply to be settings", code=FaultCode.NOT_TOML)]) from None


def _syntax(text: str, message: str) -> Fault:
    """The fault of a TOML syntax error, with its line, column and text. Hides a line that may hold a secret."""
    lines = text.splitlines() or [""]
    what, _, place = message.partition(" (at ")
    at = re.match(r"line (\d+), column (\d+)", place)
    line, column = (int(at[1]), int(at[2])) if at else (len(lines), len(lines[-1]) + 1)
    shown = lines[line - 1] if line <= len(lines) else ""
    key = shown.partition("=")[0].strip().strip("\"'")
    if sign_of(shown) or names_secret(key):
        shown = ""
    plain = (words for start, words in _SYNTAX.items() if what.startswith(start))
    words = next(plain, what[:1].lower() + what[1:])
    found = f"is not TOML (column {column}): {words}"
    if shown.strip():
        found += f": {shown.strip()[:_LINE_SHOWN_MAX]}"
    return Fault(found, _cure_of(words, shown), line=line, code=FaultCode.NOT_TOML)


_SYNTAX = {
    "Invalid value": "this is no value",
    "Invalid statement": "this is neither a [table] nor key = value",
    "Cannot overwrite a value": "this key is set twice",
    "Cannot declare": "this table is there twice",
    "Expected '=' after a key in a key/value pair": "a key is not followed by =",
    "Expected newline or end of document after a statement": "there is more behind the value",
    "Unterminated string": "a quote is not closed",
    "Illegal character '\\n'": "a quote is not closed in this line",
    "Expected ']' at the end of a table declaration": "a table's name is not closed by ]",
    "Unclosed array": "a list is not closed by ]",
    "Unclosed inline table": "a table is not closed by }",
}


def _cure_of(words: str, shown: str) -> str:
    value = shown.partition("=")[2].strip()
    if words == _SYNTAX["Invalid value"] and re.match(r"[A-Za-z/~.]", value):
        return "text stands in quotes, true and false are written small"
    return "merge the two" if "twice" in words else ""


def _owned(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return ""
    return f" (mode {stat.S_IMODE(found.st_mode):04o}, user id {found.st_uid})"


def _variable_of(key: tuple[str, ...]) -> str:
    """The environment variable that sets a key, or a table around it; "" for none."""
    for end in range(len(key), 0, -1):
        name = "MESHD_" + "__".join(key[:end]).upper()
        if name in os.environ:
            return name
    return ""


def _variable(error: SettingsError) -> str:
    found = re.search(r'field "(\w+)"', str(error))
    return f"MESHD_{found[1].upper()} is not JSON" if found else "it is not JSON"
