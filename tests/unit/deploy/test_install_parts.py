"""Parts of the installer: what it takes, what keeps it from removing meshd, and what it puts back."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from meshd.store.journal import Journal
from meshd.store.migrations import MIGRATIONS
from tests.unit.worlds import NOW, Phase, machine

ROOT = Path(__file__).resolve().parents[3]
STEPS = ROOT / "deploy/head/steps.sh"
LOCKS = ROOT / "deploy/head/requirements"


def run(script: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]}
    return subprocess.run(["sh", "-euc", script], capture_output=True, text=True, timeout=60, check=False, env=env)


def names_in(lock: str) -> dict[str, str]:
    """Package to version."""
    text = (LOCKS / f"{lock}.txt").read_text()
    return {canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.M)}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = ("aws", "gce", "runpod")


@pytest.mark.parametrize("lock", ["base", "build", *EXTRAS])
def test_every_locked_package_has_hashes(lock: str) -> None:
    text = (LOCKS / f"{lock}.txt").read_text()
    packages = re.split(r"^(?=\S)", text, flags=re.M)[1:]
    assert packages
    assert [package.split()[0] for package in packages if "--hash=sha256:" not in package] == []


def test_the_locks_have_all_that_the_project_asks_for() -> None:
    project = PROJECT["project"]
    wanted = {"base": project["dependencies"], "build": PROJECT["build-system"]["requires"]}
    for lock, extra in (("base", None), ("build", None), *((e, e) for e in EXTRAS)):
        requirements = [*(wanted.get(lock, [])), *(project["optional-dependencies"][extra] if extra else [])]
        locked = names_in(lock)
        for requirement in map(Requirement, requirements):
            version = locked.get(canonicalize_name(requirement.name))
            assert version is not None and requirement.specifier.contains(version), f"{lock}: run deploy/head/lock"


def test_the_locks_agree() -> None:
    everything: dict[str, str] = {}
    for lock in ("base", "build", *EXTRAS):
        for name, version in names_in(lock).items():
            assert everything.setdefault(name, version) == version, f"{name}: run deploy/head/lock"


@pytest.mark.parametrize(
    ("extras", "files"),
    [("", ["base", "build"]), ("aws,gce", ["base", "aws", "gce", "build"]), ("nonsense", None), ("../base", None)],
)
def test_which_locks_are_taken(extras: str, files: list[str] | None) -> None:
    done = run(f"here={ROOT}/deploy/head\n. {STEPS}\nfrom={ROOT} extras={extras}\nlocks")
    if files is None:
        assert done.returncode == 1
    else:
        assert done.stdout.split() == [f"{LOCKS}/{name}.txt" for name in files]
        assert all(Path(line).exists() for line in done.stdout.split())


def uninstall(state: Path, *, keep: bool = False) -> subprocess.CompletedProcess[str]:
    return run(f". {STEPS}\nstate_dir={state} keep_machines={'yes' if keep else 'no'}\nrefuse_while_rented")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as the installer does")
def test_meshd_stays_while_machines_are_rented(tmp_path: Path) -> None:
    assert uninstall(tmp_path).returncode == 0, "no journal, no machines"
    journal = Journal(tmp_path / "journal.db")
    journal.put(machine(Phase.READY, index=1), "phase", "ready", NOW)
    journal.put(machine(Phase.GONE, index=2), "phase", "gone", NOW)
    done = uninstall(tmp_path)
    assert done.returncode == 1
    assert "meshctl scale --pool h100 --gpus 0" in done.stdout
    assert machine(Phase.READY, index=1).name in done.stdout
    assert machine(Phase.GONE, index=2).name not in done.stdout
    kept = uninstall(tmp_path, keep=True)
    assert kept.returncode == 0 and machine(Phase.READY, index=1).name in kept.stdout
    journal.put(machine(Phase.GONE, index=1), "phase", "gone", NOW)
    assert uninstall(tmp_path).returncode == 0
    journal.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as the installer does")
def test_what_cannot_be_told_is_not_taken_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"no database at all, and longer than a header" * 9)
    assert uninstall(tmp_path).returncode == 1
    assert uninstall(tmp_path, keep=True).returncode == 0


def older(state: Path, form: int) -> subprocess.CompletedProcess[str]:
    return run(f". {STEPS}\nstate_dir={state}\nrefuse_newer_journal {form}")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as the installer does")
def test_an_older_meshd_is_not_put_over_a_newer_journal(tmp_path: Path) -> None:
    form = len(MIGRATIONS)
    assert older(tmp_path, 1).returncode == 0, "no journal"
    running = Journal(tmp_path / "journal.db")
    assert older(tmp_path, form).returncode == older(tmp_path, form + 1).returncode == 0
    (tmp_path / f"journal.db.form-{form - 1}").touch()
    refused = older(tmp_path, form - 1)
    assert refused.returncode == 1
    assert f"meshctl restore {tmp_path}/journal.db.form-{form - 1}" in refused.stdout
    running.close()
    (tmp_path / "journal.db").write_bytes(b"no database at all, and longer than a header" * 9)
    assert older(tmp_path, form - 1).returncode == 0, "meshd itself says what is wrong with it"


TAILSCALE = """#!/bin/sh
# Stands for tailscale: an operator in a file.
case $1 in
debug) printf '{"OperatorUser": "%s"}' "$(cat "$FILE")" ;;
set) printf '%s' "${2#--operator=}" >"$FILE" ;;
esac
"""


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "tailscale"
    program.parent.mkdir()
    program.write_text(TAILSCALE)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    file = tmp_path / "operator"
    file.write_text("")
    monkeypatch.setenv("FILE", str(file))
    return file


@pytest.mark.parametrize("before", ["", "alice"])
def test_tailscale_s_operator_comes_back(operator: Path, before: str) -> None:
    operator.write_text(before)
    steps = f". {STEPS}\nuser=slurm operator_record={operator.parent}/record"
    for _ in range(2):  # an upgrade does not take meshd's own for the one before
        assert run(f"{steps}\nset_operator", operator.parent / "bin").returncode == 0
        assert operator.read_text() == "slurm"
    assert run(f"{steps}\nrestore_operator", operator.parent / "bin").returncode == 0
    assert operator.read_text() == before
    assert not (operator.parent / "record").exists()


def test_an_operator_that_was_set_since_stays(operator: Path) -> None:
    steps = f". {STEPS}\nuser=slurm operator_record={operator.parent}/record"
    run(f"{steps}\nset_operator", operator.parent / "bin")
    operator.write_text("bob")
    run(f"{steps}\nrestore_operator", operator.parent / "bin")
    assert operator.read_text() == "bob"
