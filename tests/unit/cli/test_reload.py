"""`meshctl reload` waits for the result. With wrong settings it fails and shows every fault."""

from __future__ import annotations

import re
from pathlib import Path

from meshd.api.schema import CheckRow
from tests.unit.api.memory_desk import MemoryDesk
from tests.unit.api.served import Served
from tests.unit.cli.conftest import Meshctl

ROOT = Path(__file__).resolve().parents[3]


def test_a_reload_that_is_refused_fails_with_every_fault(desk: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    assert meshctl("reload").code == 0
    desk.settings_wait = ["node_api"]
    ran = meshctl("reload")
    assert ran.code == 0 and "node_api" in ran.err and "systemctl restart meshd" in ran.err
    desk.settings_faults = [
        CheckRow(name="/etc/meshd/meshd.toml:3", status="fail", text="pools.a.x: unknown key", cure="did you mean y?"),
        CheckRow(name="/etc/meshd/meshd.toml:9", status="fail", text="another", cure=""),
    ]
    ran = meshctl("reload")
    assert ran.code == 1
    assert all(part in ran.err for row in desk.settings_faults for part in (row.name, row.text, row.cure))
    ran = meshctl("reload", "-o", "json")
    assert (ran.code, len(ran.json()["faults"]), ran.json()["reloaded"]) == (1, 2, False)
    assert len(desk.actors) == 4


def test_without_a_daemon_a_reload_fails(meshctl: Meshctl) -> None:
    assert meshctl("reload").code == 4


def test_the_service_reloads_by_it() -> None:
    unit = (ROOT / "systemd/meshd.service").read_text()
    assert re.findall(r"^ExecReload=(.*)$", unit, re.M) == ["/opt/meshd/venv/bin/meshctl reload"]
