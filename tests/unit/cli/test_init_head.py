"""`meshctl init` on a head itself, without --root: layers of the test's own cover this machine's /etc and /var."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("unshare"), reason="init runs as root, in namespaces"
)

LAYERS = """
set -e
mount -t tmpfs none "$1"
for d in etc var; do
  mkdir "$1/$d-upper" "$1/$d-work"
  mount -t overlay -o "lowerdir=/$d,upperdir=$1/$d-upper,workdir=$1/$d-work" overlay /$d
done
rm -rf /etc/slurm /etc/munge /etc/meshd /var/lib/meshd-slurm
mkdir -p /etc/slurm /etc/meshd
printf 'root:x:0:0::/:/bin/sh\\nslurm:x:4711:4711::/:/bin/false\\nmunge:x:4712:4712::/:/bin/false\\n' >/etc/passwd
printf '[cluster]\\nname = "lab"\\n[pools.a100]\\ngpu = "a100"\\n' >/etc/meshd/meshd.toml
hostname head
"""
CONF = (
    "ClusterName=lab\nSlurmctldHost=head(100.64.0.1)\nSlurmUser=slurm\n"
    "NodeName=rack1 CPUs=1\nPartitionName=p Nodes=rack1\n"
)


RUNS = """
import os, sys
from meshd.cli.main import cli
for option in sys.argv[1:]:
    if os.fork() == 0:
        cli(["init", "--head-address", "100.64.0.1", "-o", "json", option])
        sys.exit("it did not end by itself")
    os.wait()
"""
"""Runs `meshctl init` with one option after the other, each in a process of its own; what it needs is imported once."""


def on_a_head(tmp_path: Path, script: str) -> list[Any]:
    """Run the script on a fresh head; returns the JSON document of each `init` in it."""
    init = f"{sys.executable} -c '{RUNS}'"
    argv = ["unshare", "-m", "-u", "sh", "-c", LAYERS + script.replace("INIT", init), "sh", str(tmp_path)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    decoder, documents, text = json.JSONDecoder(), [], done.stdout.strip()
    while text:
        document, end = decoder.raw_decode(text)
        documents.append(document)
        text = text[end:].strip()
    return documents


def test_a_second_run_on_the_head_itself_changes_nothing(tmp_path: Path) -> None:
    find = "find /etc/slurm /etc/munge /var/lib/meshd-slurm | sort"
    first, second = on_a_head(
        tmp_path,
        f"printf '{CONF}' >/etc/slurm/slurm.conf\nINIT --yes; {find} >$1/a\nINIT --yes; {find} >$1/b\ncmp $1/a $1/b",
    )
    assert first["applied"]
    assert {change["path"] for change in first["changes"]} >= {"/etc/slurm/slurm.conf", "/etc/slurm/nodes.conf"}
    assert (second["applied"], second["changes"]) == (False, [])
    assert [finding["code"] for finding in second["findings"]] == ["task_prolog"], "rack1 may not have its program"


def test_a_head_without_any_file_gets_them_all(tmp_path: Path) -> None:
    first, second = on_a_head(tmp_path, "INIT --yes --yes; test -f /etc/munge/munge.key\n")
    assert "/etc/slurm/slurm.conf" in {change["path"] for change in first["changes"]}
    assert second["changes"] == []


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        ("mkdir /etc/slurm/slurm.conf", "not_a_file"),
        ("mkfifo /etc/slurm/slurm.conf", "not_a_file"),
        ("ln -s slurm.conf /etc/slurm/slurm.conf", "link_loop"),
        ("ln -s gone /etc/slurm/slurm.conf", "link_dangles"),
        ("printf 'NodeName=a100-1\\n' >/etc/slurm/slurm.conf", "node_name_taken"),
        ("mount --bind -o ro /etc/slurm /etc/slurm", "read_only"),
    ],
)
def test_a_dry_run_refuses_what_a_run_would(tmp_path: Path, make: str, kind: str) -> None:
    runs = "ls -la /etc/slurm >$1/a; INIT --dry-run --yes; ls -la /etc/slurm >$1/b; cmp $1/a $1/b"
    documents = on_a_head(tmp_path, f"{make}\n{runs}")
    assert [document["kind"] for document in documents] == [kind, kind]


@pytest.mark.skipif(shutil.which("slurmd") is not None, reason="this machine has slurmd")
def test_a_head_without_slurmd_does_not_compute_and_nothing_is_installed(tmp_path: Path) -> None:
    refused, asked = on_a_head(
        tmp_path,
        f"printf '{CONF}' >/etc/slurm/slurm.conf\nINIT --compute\n"
        "printf '[head]\\ncompute = true\\n' >>/etc/meshd/meshd.toml\nINIT --yes\n"
        f"printf '{CONF}' | cmp - /etc/slurm/slurm.conf",
    )
    for document in (refused, asked):
        assert document["kind"] == "packages_missing"
        assert "apt-get install slurmd" in document["cure"]
