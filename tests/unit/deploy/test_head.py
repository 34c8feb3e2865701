"""What is put on a head: units that systemd accepts, a clean installer, an example that loads."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from meshd.config import load

ROOT = Path(__file__).resolve().parents[3]
UNITS = {
    "meshd.service": 14,
    "meshd-exports.service": 20,
    "meshd-hosts.service": 10,
    "meshd-munge.service": 13,
    "meshd-slurm.service": 10,
    "meshd-slurmctld.service": 10,
}
"""Ten times the exposure level of `systemd-analyze security` that each may have, as in .ci/units."""
ANALYZE = shutil.which("systemd-analyze")


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS)
def test_exposure_is_below_two(unit: str, tmp_path: Path) -> None:
    file = shutil.copy(ROOT / "systemd" / unit, tmp_path)
    done = _run("systemd-analyze", "security", "--offline=true", f"--threshold={UNITS[unit]}", "--no-pager", str(file))
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


@pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze")
def test_units_are_well_formed(tmp_path: Path) -> None:
    for file in [*(ROOT / "systemd").glob("*.service"), *(ROOT / "systemd").glob("*.path")]:
        text = re.sub(r"/opt/meshd/venv/bin/\w+", "/bin/true", file.read_text())
        (tmp_path / file.name).write_text(text)
    done = _run("systemd-analyze", "verify", "--man=no", *(str(file) for file in sorted(tmp_path.iterdir())))
    ours = [line for line in done.stderr.splitlines() if "meshd" in line]
    assert ours == []


def test_slurmctld_comes_back_when_it_dies_and_not_when_it_is_stopped() -> None:
    text = (ROOT / "systemd/slurmctld.service.d/10-meshd.conf").read_text()
    assert "\nRestart=on-failure\n" in text
    assert "slurmctld.service.d/10-meshd.conf" in (ROOT / "deploy/head/steps.sh").read_text()


def test_every_program_of_the_daemon_may_run() -> None:
    text = (ROOT / "systemd/meshd.service").read_text()
    assert "PrivateUsers=yes" not in text, "callers of the socket would all look like nobody"
    families = re.search(r"^RestrictAddressFamilies=(.*)$", text, re.M)
    assert families and set(families[1].split()) == {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"}


def test_credential_directories_exist_before_the_service_starts() -> None:
    unit, tmpfiles = (ROOT / "systemd/meshd.service").read_text(), (ROOT / "systemd/tmpfiles.d/meshd.conf").read_text()
    wanted = re.findall(r"^LoadCredential=\w+:(/etc/meshd/\S+)$", unit, re.M)
    assert wanted
    for directory in wanted:
        assert f"d {directory} 0700 root root" in tmpfiles


def test_the_example_of_the_settings(tmp_path: Path) -> None:
    example = (ROOT / "deploy/head/meshd.toml").read_text()
    file = tmp_path / "meshd.toml"
    file.write_text(example)
    assert load(file).pools == {}
    file.write_text(re.sub(r"^# (?=\[|[a-z_]+ = )", "", example, flags=re.M))
    everything = load(file)
    assert set(everything.pools) == {"h100"} and set(everything.providers) == {
        "aws",
        "gce",
        "lambda",
        "paperspace",
        "runpod",
    }


@pytest.mark.parametrize(
    ("settings", "extras"),
    [
        (None, "aws"),
        ("[providers.lambda]", "aws"),
        ("[providers.gce]", "aws,gce"),
        ("[providers.gce]\nenabled = false", "aws"),
        ("providers = 1", "aws"),
        ("[providers", "aws"),
    ],
)
def test_the_installer_takes_the_sdks_that_the_settings_need(settings: str | None, extras: str, tmp_path: Path) -> None:
    installer = (ROOT / "deploy/head/install").read_text()
    function = re.search(r"^default_extras\(\) \{$.*?^\}$", installer, re.M | re.S)
    assert function
    if settings is not None:
        (tmp_path / "meshd.toml").write_text(settings)
    done = _run("sh", "-euc", f"etc='{tmp_path}'\n{function[0]}\ndefault_extras")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, extras, "")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_the_installer_is_clean() -> None:
    done = _run("shellcheck", "-x", "-P", str(ROOT), str(ROOT / "deploy/head/install"))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), (["--nonsense"], 2), (["--from"], 1)])
def test_the_installer_s_usage(words: list[str], code: int) -> None:
    done = _run("sh", str(ROOT / "deploy/head/install"), *words)
    assert done.returncode == code


def test_every_unit_is_installed_and_leaves_no_core_dump() -> None:
    installer = (ROOT / "deploy/head/steps.sh").read_text()
    there = {path.name for path in (ROOT / "systemd").glob("meshd*") if path.is_file()}
    listed = re.search(r"^units='(.*)'$", installer, re.M)
    assert listed and set(listed[1].split()) == there
    assert set(UNITS) == {name for name in there if name.endswith(".service")}
    for unit in UNITS:
        assert "\nLimitCORE=0\n" in (ROOT / "systemd" / unit).read_text(), unit
    wants = re.search(r"^Wants=(.*)$", (ROOT / "systemd/meshd.service").read_text(), re.M)
    assert wants and {name for name in there if name.endswith(".path")} <= set(wants[1].split())
