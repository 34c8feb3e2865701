"""The ends of a machine's logs, where other users than root own a directory of logs."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.node.meshd_node import logs
from deploy.node.meshd_node.paths import Paths


@pytest.mark.parametrize("plant", ["link", "fifo", "directory"])
def test_what_munge_plants_shows_no_file_of_roots_and_ends(tmp_path: Path, plant: str) -> None:
    node: Any = SimpleNamespace(paths=Paths(tmp_path, tmp_path / "proc"), systemd=True)
    log = tmp_path / "var/log/munge/munged.log"
    log.parent.mkdir(parents=True)
    log.write_text("munge began\n")
    assert "munge began" in logs.collect(node, 10, ["munged"])["munged"]
    log.unlink()
    (tmp_path / "secret").write_text("hunter2\n")
    if plant == "link":
        log.symlink_to(tmp_path / "secret")
    elif plant == "fifo":
        os.mkfifo(log)
    else:
        log.mkdir()
    assert "hunter2" not in logs.collect(node, 10, ["munged"]).get("munged", "")
