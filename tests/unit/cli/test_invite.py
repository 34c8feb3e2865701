"""`meshctl invite`, `hosts`, and `remove` of a host."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest

from meshd.api import endpoints
from meshd.api.schema import HostRow, HostsView, InviteAnswer, InviteRequest, MachineAnswer
from meshd.cli.errors import CliError
from meshd.cli.fanout import Ended
from meshd.cli.invitation_file import Line, parse
from meshd.cli.invitation_ssh import cures
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl
from tests.unit.cli.helpers import NOW

SCRIPT = "#!/bin/sh\n# sEcReT-of-the-invitation\necho it runs on $(id -un)\n"
ANSWER = InviteAnswer(
    name="tower", pool="desk", slot="desk-1", expires_at=NOW + timedelta(hours=1), script=SCRIPT,
    tailnet_command="printf 'Authorization: Bearer x' | curl -H @- http://100.64.0.1:6823/v1/invitation | sh",
    logs_in=True,
)  # fmt: skip
ROW = HostRow(
    name="tower", pool="desk", slot="desk-1", state="node", machine="lab-desk-1-abcdef", gpu="rtx-4090", gpus=1,
    seen_at=NOW - timedelta(seconds=7), usd_per_hour=0.12,
)  # fmt: skip


@pytest.fixture
def asked(head: SimHead) -> list[InviteRequest]:
    """What is asked of a head that answers each invitation."""
    found: list[InviteRequest] = []

    async def invite(request: InviteRequest, _actor: object) -> InviteAnswer:
        found.append(request)
        return ANSWER.model_copy(update={"name": request.name, "script": SCRIPT.replace("it", request.name)})

    head.write(endpoints.INVITE, invite)
    return found


def test_it_prints_one_command(asked: list[InviteRequest], served: SimHead, meshctl: Meshctl) -> None:
    ran = meshctl("invite", "--pool", "desk", "--name", "tower", "--expires", "30m", "--usd-per-hour", "0.12")
    assert (ran.code, ran.out) == (0, f"{ANSWER.tailnet_command}\n")
    assert "desk-1" in ran.err and SCRIPT not in ran.out + ran.err
    (request,) = asked
    assert (request.pool, request.name, request.expires_s, request.usd_per_hour) == ("desk", "tower", 1800.0, 0.12)


def test_a_script_is_for_its_owner_alone(
    asked: list[InviteRequest], served: SimHead, meshctl: Meshctl, tmp_path: Path
) -> None:
    made = tmp_path / "tower.sh"
    made.write_text("old")
    made.chmod(0o644)
    elsewhere = tmp_path / "elsewhere"
    assert meshctl("invite", "--pool", "desk", "--name", "tower", "--output", str(made)).code == 0
    assert (made.stat().st_mode & 0o777, "sEcReT" in made.read_text()) == (0o600, True)
    made.unlink()
    made.symlink_to(elsewhere)
    assert meshctl("invite", "--pool", "desk", "--name", "tower", "--output", str(made)).code == 0
    assert not elsewhere.exists() and not made.is_symlink()
    ran = meshctl("invite", "--pool", "desk", "--name", "tower", "--output", "-")
    assert ran.out == SCRIPT.replace("it", "tower")


def test_several_from_a_file(asked: list[InviteRequest], served: SimHead, meshctl: Meshctl, tmp_path: Path) -> None:
    names = tmp_path / "machines.txt"
    names.write_text(
        "# the office\n\n"
        "tower usd-per-hour=0.5\n"
        "attic wake-mac=3c:ec:ef:00:12:34 sleep-command='systemctl suspend' # upstairs\n"
    )
    scripts = tmp_path / "scripts"
    ran = meshctl("invite", "--pool", "desk", "--file", str(names), "--usd-per-hour", "0.1", "--output", str(scripts))
    assert ran.code == 0, ran.err
    assert sorted(path.name for path in scripts.iterdir()) == ["attic.sh", "tower.sh"]
    assert [(r.name, r.usd_per_hour, r.wake_mac, r.sleep_command) for r in asked] == [
        ("tower", 0.5, "", ()), ("attic", 0.1, "3c:ec:ef:00:12:34", ("systemctl", "suspend")),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "# none", "tower\ntower", "tower cost=1", "tower ssh", "tower sleep-command='x", "tower wake-mac"]
)
def test_a_file_that_cannot_be_used(text: str) -> None:
    with pytest.raises(CliError, match="machines"):
        parse(text, "machines")


def test_a_file_in_words() -> None:
    assert parse("a ssh=root@h\nb", "machines") == [Line("a", {"ssh": "root@h"}), Line("b")]


@pytest.mark.parametrize(
    "argv",
    [
        ["--name", "tower"], ["--pool", "desk"], ["--pool", "desk", "--name", "x", "--file", "/dev/null"],
        ["--pool", "desk", "--name", "tower", "--ssh", "-oProxyCommand=id"],
        ["--pool", "desk", "--name", "Tower!"], ["--pool", "desk", "--name", "tower", "--wake-mac", "12:34"],
        ["--pool", "desk", "--name", "tower", "--usd-per-hour", "nan"],
        ["--pool", "desk", "--name", "tower", "--expires", "30d"],
        ["--pool", "desk", "--name", "tower", "--sleep-command", "'"],
    ],
)  # fmt: skip
def test_wrong_usage(asked: list[InviteRequest], served: SimHead, meshctl: Meshctl, argv: list[str]) -> None:
    ran = meshctl("invite", *argv)
    assert (ran.code, ran.out) == (2, "")
    assert not asked


def test_over_ssh_the_script_is_the_input_of_a_shell(
    asked: list[InviteRequest], served: SimHead, meshctl: Meshctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in the place of ssh runs here what would run there."""
    words = tmp_path / "words"
    program = tmp_path / "ssh"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{words}\nfor last; do :; done\nexec sh -c "$last"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    ran = meshctl("invite", "--pool", "desk", "--name", "tower", "--ssh", "root@10.0.0.5")
    assert ran.code == 0, ran.err
    assert "tower: tower runs on root" in ran.err
    assert "root@10.0.0.5" in words.read_text() and "sEcReT" not in words.read_text()
    program.write_text("#!/bin/sh\necho no route to host >&2\nexit 255\n")
    ran = meshctl("invite", "--pool", "desk", "--name", "tower", "--ssh", "root@10.0.0.5")
    assert (ran.code, "tower: no route to host" in ran.err) == (1, True)


@pytest.mark.parametrize(
    ("code", "line", "word"),
    [
        (255, "Host key verification failed.", "`ssh root@10.0.0.5` once"),
        (255, "mallory@10.0.0.5: Permission denied (publickey,password).", "ssh-copy-id root@10.0.0.5"),
        (255, "ssh: Could not resolve hostname towr: Name or service not known", "address"),
        (255, "ssh: connect to host 10.0.0.5 port 22: Connection refused", "is it on"),
        (255, "ssh: connect to host 10.0.0.5 port 22: No route to host", "is it on"),
        (255, "Connection timed out during banner exchange", "is it on"),
        (255, "Timeout, server 10.0.0.5 not responding.", "is it on"),
        (255, "Connection closed by 10.0.0.5 port 22", "is it on"),
        (1, "sudo: a password is required", "root@10.0.0.5"),
    ],
)
def test_what_keeps_ssh_from_running_the_script_has_a_cure(code: int, line: str, word: str) -> None:
    (cure,) = cures(Ended("tower", code), [line], "root@10.0.0.5")
    assert word in cure


def test_what_the_script_says_is_left_alone() -> None:
    line = "meshd: this machine stays as it is: munged runs here. Permission denied"
    assert cures(Ended("tower", 1), [line], "root@10.0.0.5") == []
    assert cures(Ended("tower", 0), ["done"], "root@10.0.0.5") == []
    (cure,) = cures(Ended("tower", 124, timed_out=True), [], "root@10.0.0.5")
    assert "30 min" in cure


def test_hosts(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    head.give(endpoints.HOSTS, HostsView(at=NOW))
    assert meshctl("hosts").out == ""
    invited = HostRow(name="attic", pool="desk", slot="desk-2", state="invited", expires_at=NOW + timedelta(minutes=5))
    head.give(endpoints.HOSTS, HostsView(at=NOW, hosts=[ROW, invited]))
    ran = meshctl("hosts")
    assert "tower" in ran.out and "7s" in ran.out and "may come for 5m00s" in ran.out
    assert json.loads(meshctl("hosts", "-o", "json").out)["hosts"][0]["machine"] == "lab-desk-1-abcdef"


def test_removing_a_host_asks_first(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    asked = []

    async def remove(request: object, _actor: object) -> MachineAnswer:
        asked.append(request)
        return MachineAnswer(machine="tower", slot="desk-1", phase="", text="is evicted")

    head.give(endpoints.HOSTS, HostsView(at=NOW, hosts=[ROW]))
    head.write(endpoints.REMOVE, remove)
    ran = meshctl("remove", "tower")
    assert (ran.code, asked) == (2, [])
    assert "evicts tower" in ran.err
    assert meshctl("remove", "tower", "--yes").code == 0
    assert len(asked) == 1
