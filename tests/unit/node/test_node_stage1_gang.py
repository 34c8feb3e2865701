"""Stage 1 of a gang: each machine finds out from its metadata service which one it is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from meshd.bootstrap import assets
from meshd.bootstrap.stage1 import GANG_SIZE_MAX_B, render
from meshd.gang_id import gang_id, gang_machines
from tests.unit.node.stage1_alone import STAGE

GANG = gang_id([f"mesh-h100-{slot}-k7q2mz" for slot in (1, 2, 3, 7, 10, 11)])
STAGE_OF_GANG = replace(STAGE, machine="", gang=GANG)

EC2 = """\
meta() {
  case "$1 $2 $3" in
    "PUT /latest/api/token X-aws-ec2-metadata-token-ttl-seconds: "*) echo TOKEN ;;
    "GET /latest/meta-data/ami-launch-index X-aws-ec2-metadata-token: TOKEN") echo "$INDEX" ;;
    "GET /latest/meta-data/instance-id X-aws-ec2-metadata-token: TOKEN") echo i-0123456789abcdef0 ;;
    *) return 22 ;;
  esac
}
"""
GCE = """\
meta() {
  case "$1 $2 $3" in
    "GET /computeMetadata/v1/instance/name Metadata-Flavor: Google") echo mesh-h100-7-k7q2mz ;;
    "GET /computeMetadata/v1/instance/zone Metadata-Flavor: Google") echo projects/12/zones/us-central1-a ;;
    *) return 22 ;;
  esac
}
"""


def text(*, systemd: bool = True) -> str:
    return render(STAGE_OF_GANG, assets.stage1_template(systemd=systemd, gang=True))


def run(shell: str, then: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """All functions of the script, and then these lines."""
    body, main, _ = text().rpartition("\nmain\n")
    assert main
    argv = [shell, "-c", f"{body}\nlogger() {{ :; }}\n{then}\n"]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30, env=environment)


@pytest.mark.parametrize("systemd", [True, False])
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_every_shell_parses_it(shell: str, systemd: bool, tmp_path: Path) -> None:
    script = tmp_path / "stage1.sh"
    script.write_text(text(systemd=systemd))
    result = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    script = tmp_path / "stage1.sh"
    script.write_text(text())
    argv = ["shellcheck", "-S", "warning", "-e", "SC2157", str(script)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_it_is_the_same_for_all_and_small() -> None:
    assert text() == text()
    assert len(text().encode()) <= GANG_SIZE_MAX_B
    assert not re.search(r"@[A-Z_]+@|#: ", text())
    assert "who_am_i" not in render(STAGE, assets.stage1_template()), "one machine knows its name"


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize(("index", "name"), list(enumerate(gang_machines(GANG))))
def test_ec2s_index_is_a_name(shell: str, index: int, name: str) -> None:
    told = run(shell, EC2 + "identify && echo $MACHINE $ID", INDEX=str(index), PATH="/usr/bin:/bin")
    assert told.stdout.split() == [name, "i-0123456789abcdef0"], told.stderr


@pytest.mark.parametrize("index", ["6", "99"])
def test_an_index_that_the_gang_does_not_have_is_no_name(index: str) -> None:
    told = run("dash", EC2 + 'identify; echo "left $? $MACHINE"', INDEX=index, PATH="/usr/bin:/bin")
    assert told.stdout.split() in (["left", "1"], ["left", "0"])


def test_gce_tells_the_name() -> None:
    told = run("dash", GCE + "identify && echo $MACHINE $ID", PATH="/usr/bin:/bin")
    assert told.stdout.split() == ["mesh-h100-7-k7q2mz", "us-central1-a/mesh-h100-7-k7q2mz"]


def test_a_service_that_is_late_is_asked_again_and_one_that_is_away_is_reported() -> None:
    late = "tries=0; sleep() { tries=$((tries + 1)); }; give_up() { echo gave up after $tries; exit 1; }\n"
    told = run("dash", GCE.replace("echo mesh", "[ $tries -gt 3 ] && echo mesh") + late + "who_am_i; echo $MACHINE",
               PATH="/usr/bin:/bin")  # fmt: skip
    assert told.stdout.split()[-1] == "mesh-h100-7-k7q2mz"
    told = run("dash", "meta() { return 7; }\n" + late + "who_am_i", PATH="/usr/bin:/bin")
    assert told.stdout.splitlines()[-1] == "gave up after 119"


def test_what_the_agent_is_told(tmp_path: Path) -> None:
    line = next(line for line in text().splitlines() if "%MACHINE%" in line and "printf" in line)
    told = run("dash", f"{GCE}identify\n" + line.replace(">$JOIN.new &&", "").strip(), PATH="/usr/bin:/bin")
    config = json.loads(told.stdout)
    assert (config["machine"], config["instance_id"]) == ("mesh-h100-7-k7q2mz", "us-central1-a/mesh-h100-7-k7q2mz")
    assert config["token"] == "J" * 64


@pytest.mark.parametrize("changes", [{"machine": "mesh-a-1-abcdef"}, {"gang": ""}, {"gang": "x; rm -rf /"}])
def test_a_script_is_for_one_machine_or_for_a_gang(changes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="one machine, or for a gang"):
        render(replace(STAGE_OF_GANG, **changes), assets.stage1_template(gang=True))  # type: ignore[arg-type]
