from __future__ import annotations

import pytest

from meshd.plan.node_settings import ClusterGiven, NodeKind, PoolGiven, sections
from meshd.plan.plugstack import PLUGSTACK_D, PyxisLine, pyxis_line

DEBIAN = "# comment\ninclude /etc/slurm/plugstack.conf.d/*.conf\n"
REQUIRED = "required /usr/lib/slurm/spank_pyxis.so"


@pytest.mark.parametrize(
    ("plugstack", "included", "found"),
    [
        ("", "", PyxisLine()),
        (DEBIAN, "", PyxisLine()),
        (f"{REQUIRED}\n", "", PyxisLine(REQUIRED, shipped=True)),
        (DEBIAN, f"{REQUIRED}   a=b\n", PyxisLine(f"{REQUIRED} a=b")),
        ("", f"{REQUIRED}\n", PyxisLine()),  # nothing includes it
        (DEBIAN, f"# {REQUIRED}\n", PyxisLine()),
        (DEBIAN, REQUIRED.replace("required", "optional"), PyxisLine()),
        (DEBIAN, "required /usr/lib/slurm/other.so\n", PyxisLine()),
        (DEBIAN, f"{REQUIRED} {'x' * 2000}\n", PyxisLine()),
    ],
)
def test_how_the_head_loads_pyxis(plugstack: str, included: str, found: PyxisLine) -> None:
    assert pyxis_line(plugstack, {PLUGSTACK_D / "pyxis.conf": included}) == found


def test_machines_get_it_and_pods_do_not() -> None:
    given = ClusterGiven({"h100": PoolGiven(setup="#!/bin/sh\n", setup_timeout_s=60)}, pyxis=PyxisLine(REQUIRED))
    section = sections(given, NodeKind("h100", pod=False))["containers"]
    assert section.value == {"line": REQUIRED, "shipped": False}
    assert section.wanted.within_s == 60, "the script may bring it"
    assert "containers" not in sections(given, NodeKind("h100", pod=True))
