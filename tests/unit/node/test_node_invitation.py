"""The script of an invitation: what it refuses, and how it takes back what it has changed, with real shells."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from meshd.bootstrap import assets
from meshd.bootstrap.invitation import render
from meshd.plan.admission import release_text, slurmd_window
from tests.unit.node.invitation_script import CALM, INVITATION, script


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("etc", "var/lib", "run/systemd/system"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "etc/os-release").write_text("ID=debian\nPRETTY_NAME='Debian GNU/Linux 13 (trixie)'\n")
    return tmp_path


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    file = tmp_path / "invitation.sh"
    file.write_text(render(INVITATION, assets.invitation_template()))
    done = subprocess.run(
        ["shellcheck", "-s", "sh", "-S", "warning", "-e", "SC2157,SC2034,SC2046,SC2050,SC2194", file],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_it_is_a_script(shell: str) -> None:
    text = render(INVITATION, assets.invitation_template())
    assert subprocess.run([shell, "-n"], input=text, text=True, check=False).returncode == 0


def test_a_machine_that_suits_is_taken(root: Path) -> None:
    done = script(root, f"{CALM}\ncheck && echo $DEVICE")
    assert done.stdout == "ours\n", done.stderr


@pytest.mark.parametrize(
    ("then", "word"),
    [
        ("id() { echo 1000; }", "as root"),
        ("rm -r {root}/run/systemd", "systemd"),
        ("echo ID=fedora >{root}/etc/os-release", "Debian"),
        ("mkdir {root}/etc/meshd-node", "already"),
        ("mkdir {root}/etc/meshd", "already"),
        ("mkdir -p {root}/var/lib/meshd-host; : >{root}/var/lib/meshd-host/host.json", "already"),
        ("date() { echo 1999999999; }", "expired"),
        ('command() { :; }; python3() { return 1; }', "Python"),
        ("check_slurm() { refuse other; }", "other"),
        ('command() { [ "$2" = tailscale ]; }; status() { echo \'"BackendState": "Running"\'; }; '
         "head_answers() { return 1; }", "another tailnet"),
        ('command() { [ "$2" = tailscale ]; }; head_answers() { :; }; status() { printf \'%s\\n\' '
         '\'"BackendState": "Running"\' \'  "MagicDNSSuffix": "other.ts.net",\'; }', "other.ts.net"),
        ('command() { [ "$2" = tailscale ]; }; status() { echo \'"BackendState": "Stopped", "HaveNodeKey": true\'; }',
         "not in use"),
        ("AUTH_KEY=", "no key"),
    ],
)  # fmt: skip
def test_what_is_refused_is_not_changed(root: Path, then: str, word: str) -> None:
    before = sorted(str(path) for path in root.rglob("*"))
    set_up = then.replace("{root}", str(root))
    if "mkdir" in then or "rm " in then or "echo ID" in then:
        subprocess.run(["sh", "-c", set_up], check=True)
        before, set_up = sorted(str(path) for path in root.rglob("*")), ""
    done = script(root, f"{CALM}\n{set_up}\ncheck && echo taken")
    assert done.returncode == 1
    assert word in done.stderr
    assert done.stdout == ""
    assert sorted(str(path) for path in root.rglob("*")) == before


def test_a_device_of_its_owner_is_used(root: Path) -> None:
    own = 'command() { [ "$2" = tailscale ]; }; head_answers() { :; }; tailscale_ok() { :; }; status() { printf '
    own += '\'%s\\n\' \'"BackendState": "Running"\' \'  "MagicDNSSuffix": "mine.ts.net",\'; }'
    assert script(root, f"{CALM}\n{own}\ncheck && echo $DEVICE").stdout == "own\n"


def test_another_slurm_is_seen(root: Path) -> None:
    conf = root / "etc/slurm/slurm.conf"
    conf.parent.mkdir()
    conf.write_text("ClusterName=other\n")
    done = script(root, f"{CALM.replace('check_slurm() { :; }', '')}\ncheck")
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("head", "installed", "candidate", "taken"),
    [
        ("24.11.5", "slurm 24.11.5", "", True), ("24.11.5", "slurm-wlm 23.02.7", "(none)", True),
        ("24.11.5", "", "24.05.2-1", True), ("24.11.5", "", "1:23.11.4-1ubuntu5", True),
        ("24.11.5", "", "(none)", True), ("24.11.5", "", "", True), ("24.11.5", "slurm 24.11.5", "22.05.8-4", True),
        ("24.11.5", "slurm-wlm 22.05.8", "24.11.5-4", False), ("24.11.5", "", "22.05.8-4+deb12u3", False),
        ("24.11.5", "slurm 25.05.0", "", False), ("22.05.8", "", "22.05.8-4+deb12u3", True),
        ("22.05.8", "slurm-wlm 22.05.8", "22.05.8-4", True), ("22.05.8", "", "24.11.5-4", False),
    ],
)  # fmt: skip
def test_a_slurmd_that_the_head_does_not_serve_is_refused(
    root: Path, head: str, installed: str, candidate: str, taken: bool
) -> None:
    (root / "bin").mkdir()
    said = {"slurmd": installed, "apt-cache": f"slurmd:\n  Installed: (none)\n  Candidate: {candidate}\n 500"}
    for name, text in said.items():
        (root / "bin" / name).write_text(f"#!/bin/sh\nprintf '%s\\n' '{text}'\n")
        (root / "bin" / name).chmod(0o755)
    window = slurmd_window(head)
    assert window is not None
    serves = (release_text(window[0]), release_text(window[1]))
    before = sorted(str(path) for path in root.rglob("*"))
    then = f"{CALM}\nPATH={root}/bin:$PATH\ncheck_slurmd && echo taken"
    done = script(root, then, replace(INVITATION, slurm_version=head, slurmd=serves))
    assert (done.stdout == "taken\n") == taken, done.stderr
    assert taken or f"{serves[0]} to {serves[1]}" in done.stderr
    assert sorted(str(path) for path in root.rglob("*")) == before


def test_a_key_that_does_not_work_is_explained(root: Path) -> None:
    """It is for one login: of two machines that use an invitation at the same moment one has it."""
    login = "start_tailscaled() { :; }; sleep() { :; }; nap() { :; }; wait_online() { return 1; }; S="
    login += "\nstatus() { :; }; login() { echo 'invalid key: API key does not exist'; }; go_back() { echo back; }"
    done = script(root, f"{CALM}\n{login}\njoin_tailnet; echo on")
    assert (done.returncode, done.stdout) == (1, "back\n")
    assert "ends with its invitation" in done.stderr and "another machine" in done.stderr


def test_no_secret_is_an_argument() -> None:
    for line in render(INVITATION, assets.invitation_template()).splitlines():
        if "tskey" in line or "T" * 64 in line:
            assert line.startswith(("AUTH_KEY=", "printf", "[ -s")), line
