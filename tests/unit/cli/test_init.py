from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Meshctl

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="init runs as root")

SLURM_CONF = """\
# my cluster
ClusterName=old
SlurmctldHost=head(100.64.0.1)
SlurmUser=nobody
TreeWidth=50
NodeName=rack[1-4] CPUs=8
PartitionName=cpu Nodes=ALL Default=YES
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    slurm = tmp_path / "image" / "etc" / "slurm"
    slurm.mkdir(parents=True)
    (slurm / "slurm.conf").write_text(SLURM_CONF)
    (tmp_path / "meshd.toml").write_text('[cluster]\nname = "lab"\n[pools.a100]\ngpu = "a100"\n')
    munge = slurm.parent / "munge"
    munge.mkdir(mode=0o700)
    (munge / "munge.key").write_bytes(b"k" * 1024)
    (munge / "munge.key").chmod(0o400)
    return tmp_path / "image"


@pytest.fixture
def init(meshctl: Meshctl, root: Path, tmp_path: Path) -> Meshctl:
    def run(*argv: str) -> object:
        options = ["init", "--root", str(root), "--head-address", "100.64.0.1"]
        return meshctl(*options, *argv, config=str(tmp_path / "meshd.toml"))

    return run  # type: ignore[return-value]


def test_it_shows_a_diff_with_reasons_and_changes_nothing(init: Meshctl, root: Path) -> None:
    ran = init("--dry-run")
    assert ran.code == 0, ran.err
    assert "\n+Include nodes.conf\n" in ran.out or "\n+include nodes.conf\n" in ran.out.lower()
    assert "/etc/slurm/slurm.conf" in ran.out and "TreeWidth=65533" in ran.out
    assert "next: systemctl restart slurmctld.service" in ran.err
    assert (root / "etc/slurm/slurm.conf").read_text() == SLURM_CONF


def test_it_needs_yes_without_a_terminal(init: Meshctl, root: Path) -> None:
    assert init().code == 2
    assert (root / "etc/slurm/slurm.conf").read_text() == SLURM_CONF


def test_it_writes_keeps_a_copy_and_a_second_run_changes_nothing(init: Meshctl, root: Path) -> None:
    ran = init("--yes", "-o", "json")
    assert ran.code == 0, ran.err
    document = ran.json()
    assert (document["schema_version"], document["applied"]) == (1, True)
    conf = next(c for c in document["changes"] if c["path"] == "/etc/slurm/slurm.conf")
    assert Path(conf["backup"]).read_text() == SLURM_CONF
    assert conf["reasons"]
    new = (root / "etc/slurm/slurm.conf").read_text()
    assert "# my cluster" in new
    assert "NodeName=rack[1-4] CPUs=8" in new
    assert (root / "var/lib/meshd-slurm/nodes.conf").exists()
    again = init("--yes", "-o", "json")
    assert (again.code, again.json()["changes"]) == (0, [])


def test_a_munge_key_is_made_only_if_there_is_none(init: Meshctl, root: Path) -> None:
    key = root / "etc/munge/munge.key"
    init("--yes")
    assert key.read_bytes() == b"k" * 1024
    key.unlink()
    assert init("--dry-run").code == 1, "the image's users count, not the host's"
    with (root / "etc/passwd").open("a") as passwd:
        passwd.write("nobody:x:65534:65534::/:/bin/false\nmunge:x:4711:4712::/:/bin/false\n")
    assert "/etc/munge/munge.key" in init("--dry-run").out
    assert not key.exists()
    ran = init("--yes")
    assert ran.code == 0, ran.err
    made = key.stat()
    assert (stat.S_IMODE(made.st_mode), made.st_uid, made.st_gid) == (0o400, 4711, 4712)


def test_an_insecure_key_is_refused(init: Meshctl, root: Path) -> None:
    (root / "etc/munge/munge.key").chmod(0o644)
    ran = init("--yes", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (1, "init")
    assert "chmod 0400" in ran.json()["error"]
    assert (root / "etc/slurm/slurm.conf").read_text() == SLURM_CONF


def test_faulty_settings(init: Meshctl, tmp_path: Path) -> None:
    (tmp_path / "meshd.toml").write_text("[cluster\n")
    ran = init("--dry-run", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (1, "config")


def test_roots_key_for_the_nodes_is_made_once(init: Meshctl, root: Path) -> None:
    key = root / "etc/meshd/ssh/id_ed25519"
    assert "/etc/meshd/ssh/id_ed25519" in init("--dry-run").out
    assert not key.exists()
    assert init("--yes").code == 0
    public = key.with_name("id_ed25519.pub")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (key, public, key.parent)] == [0o600, 0o644, 0o755]
    assert public.read_text().startswith("ssh-ed25519 ")
    before = key.read_bytes()
    assert init("--yes").code == 0
    assert key.read_bytes() == before
    public.unlink()
    ran = init("--yes")
    assert (ran.code, "restart" in ran.err, key.read_bytes() == before) == (0, False, False)
    assert sorted(path.name for path in key.parent.iterdir()) == ["id_ed25519", "id_ed25519.pub"]
