"""`meshctl reload` waits for the result. With wrong settings it fails and shows every fault."""

from __future__ import annotations

import re
from pathlib import Path

from meshd.api.endpoints import RELOAD
from meshd.api.schema import CheckRow, ReloadView
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl

ROOT = Path(__file__).resolve().parents[3]


def test_a_reload_that_is_refused_fails_with_every_fault(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    head.give(RELOAD, ReloadView(reloaded=True))
    assert meshctl("reload").code == 0
    head.give(RELOAD, ReloadView(reloaded=True, waiting=["node_api"]))
    ran = meshctl("reload")
    assert ran.code == 0 and "node_api" in ran.err and "systemctl restart meshd" in ran.err
    faults = [
        CheckRow(name="/etc/meshd/meshd.toml:3", status="fail", text="pools.a.x: unknown key", cure="did you mean y?"),
        CheckRow(name="/etc/meshd/meshd.toml:9", status="fail", text="another", cure=""),
    ]
    head.give(RELOAD, ReloadView(reloaded=False, faults=faults))
    ran = meshctl("reload")
    assert ran.code == 1
    assert all(part in ran.err for row in faults for part in (row.name, row.text, row.cure))
    ran = meshctl("reload", "-o", "json")
    assert (ran.code, len(ran.json()["faults"]), ran.json()["reloaded"]) == (1, 2, False)
    assert len(head.writers) == 4


def test_without_a_daemon_a_reload_fails(meshctl: Meshctl) -> None:
    assert meshctl("reload").code == 4


def test_the_service_reloads_by_it() -> None:
    unit = (ROOT / "systemd/meshd.service").read_text()
    assert re.findall(r"^ExecReload=(.*)$", unit, re.M) == ["/opt/meshd/venv/bin/meshctl reload"]
