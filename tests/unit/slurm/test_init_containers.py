from __future__ import annotations

import pytest

from meshd.slurm.capabilities import SlurmVersion
from meshd.slurm.init.containers import container_change, render_oci
from meshd.slurm.init.types import InitInput

NEW, OLD = SlurmVersion((24, 11), 5), SlurmVersion((22, 5), 8)


def have(oci_conf: str | None, version: SlurmVersion | None = NEW) -> InitInput:
    return InitInput("lab", "head", "100.64.0.1", "ClusterName=lab\n", oci_conf=oci_conf, version=version)


def new_text(oci_conf: str | None, version: SlurmVersion | None = NEW) -> str | None:
    changes = container_change(have(oci_conf, version))
    return changes[0].new if changes else None


@pytest.mark.parametrize("version", [None, NEW, OLD])
def test_a_head_without_the_file_gets_it_once(version: SlurmVersion | None) -> None:
    text = new_text(None, version)
    assert text == render_oci(version)
    assert new_text(text, version) is None


def test_only_a_newer_slurm_filters_the_environment() -> None:
    assert "EnvExclude" in render_oci(NEW)
    assert "EnvExclude" not in render_oci(OLD)
    assert new_text(render_oci(OLD)) == render_oci(NEW), "after an upgrade"


def test_a_file_of_the_sites_own_stays() -> None:
    assert new_text('RunTimeRun="podman run"\n') is None


@pytest.mark.parametrize("version", [NEW, OLD])
def test_no_command_reads_notes_of_another_user(version: SlurmVersion) -> None:
    commands = [line for line in render_oci(version).splitlines() if line.startswith("RunTime") and "crun" in line]
    assert len(commands) == 4
    assert all("test -O $d && exec /usr/bin/crun" in command for command in commands)
