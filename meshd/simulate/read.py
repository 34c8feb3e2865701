"""Reads the files of `meshctl simulate`: loads, faults and dumps. Faults name the line."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from meshd.codes import FaultCode
from meshd.config import File, Settings
from meshd.config import read as read_toml
from meshd.errors import ConfigError, Fault
from meshd.settings_words import fault_of
from meshd.simulate import sacct
from meshd.simulate.load import Scenario

TOML_MAX_B = 1024 * 1024
DUMP_MAX_B = 256 * 1024 * 1024


def scenario_of(path: Path) -> Scenario:
    """A load or a file of faults. Raises ConfigError."""
    _check_size(path, TOML_MAX_B)
    file = read_toml(path)
    try:
        return Scenario.model_validate(file.table)
    except ValidationError as error:
        faults = [fault_of(one, Scenario) for one in error.errors(include_url=False)]
        raise ConfigError(str(path), _placed(file, faults)) from None


def with_faults(scenario: Scenario, path: Path) -> Scenario:
    """The load with faults, targets and `[cloud]` of another file. Raises ConfigError."""
    more = scenario_of(path)
    if more.jobs:
        raise ConfigError(str(path), [Fault("has [[jobs]], and is a file of faults: give it with --load")])
    update: dict[str, object] = {
        "faults": scenario.faults + more.faults,
        "targets": {**scenario.targets, **more.targets},
    }
    if "cloud" in more.model_fields_set:
        update["cloud"] = more.cloud
    return scenario.model_copy(update=update)


def dump(path: Path, settings: Settings) -> sacct.Dump:
    """A dump of sacct. Raises ConfigError."""
    _check_size(path, DUMP_MAX_B)
    pools = {name: name for name in settings.pools}
    pools |= {pool.partition: name for name, pool in settings.pools.items() if pool.partition}
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            return sacct.read(lines, pools)
    except sacct.BadDump as error:
        faults = [Fault(bad.text, "", line=bad.line, code=FaultCode.BAD_VALUE) for bad in error.faults]
        raise ConfigError(str(path), faults) from None
    except OSError as error:
        raise ConfigError(str(path), [Fault(f"cannot be read: {error.strerror}")]) from None


def _check_size(path: Path, most_b: int) -> None:
    try:
        size, regular = path.stat().st_size, path.is_file()
    except OSError as error:
        raise ConfigError(str(path), [Fault(f"cannot be read: {error.strerror}")]) from None
    if not regular:
        raise ConfigError(str(path), [Fault("is no file")])
    if size > most_b:
        raise ConfigError(str(path), [Fault(f"is larger than {most_b >> 20} MiB", "take a shorter time")])


def _placed(file: File, faults: list[Fault]) -> list[Fault]:
    return file.placed(faults)
