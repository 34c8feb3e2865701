"""`meshctl ssh` and `meshctl run`: what ssh is asked to do, and what becomes of its output."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from meshd.api import endpoints
from meshd.api.schema import NodeRow, NodesView
from meshd.cli.errors import CliError
from meshd.cli.ssh import ssh_argv, target
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl
from tests.unit.cli.helpers import NOW

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKlhJvVt0yM2bB1xw2Yq0JbW3n0m8rZcVxkq1R4mS1dX"


def row(slot: str, **more: Any) -> NodeRow:
    plain = NodeRow(
        machine=f"lab-{slot}-k7q2mz", slot=slot, pool=slot.rpartition("-")[0], provider="aws", phase="ready", since=NOW,
        address="100.64.0.7", joined=True, ssh_host_key=KEY,
    )  # fmt: skip
    return plain.model_copy(update=more)


FAKE_SSH = """\
#!/bin/sh
# Stands for ssh and a node's shell: the options go into a file, the command runs here.
name=
while [ $# -gt 0 ]; do
    case $1 in
    -o | -L) printf '%s\\n' "$2" >>"$SSH_SAYS"; shift 2 ;;
    -*) printf '%s\\n' "$1" >>"$SSH_SAYS"; shift ;;
    *) name=$1; shift; break ;;
    esac
done
printf 'host %s\\n' "$name" >>"$SSH_SAYS"
[ "$name" != a100-9 ] || { echo 'Host key verification failed.' >&2; exit 255; }
export NODE=$name
exec /bin/sh -c "$*"
"""


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program ssh, and root's key."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text(FAKE_SSH)
    (tmp_path / "bin/ssh").chmod(0o755)
    (tmp_path / "key").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SSH_SAYS", str(tmp_path / "says"))
    monkeypatch.setenv("MESHD_CLUSTER__SSH_KEY", str(tmp_path / "key"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path / "says"


@pytest.fixture
def nodes(head: SimHead) -> SimHead:
    rows = [row("a100-1"), row("a100-2"), row("a100-9"), row("h100-1", address="", joined=False, phase="booting")]
    head.give(endpoints.NODES, NodesView(at=NOW, nodes=rows))
    return head


def asked_options(argv: list[str]) -> dict[str, str]:
    """What ssh makes of the options: the first value of each counts. Asked of ssh itself."""
    shown = subprocess.run(["ssh", "-G", *argv[1:]], capture_output=True, text=True, check=True).stdout
    return dict(line.split(" ", 1) for line in shown.splitlines() if " " in line)


def test_nobody_can_turn_off_the_proof() -> None:
    own = ["-o", "StrictHostKeyChecking=no", "-o", "HostKeyAlias=other", "-o", "HostName=evil", "-o", "User=me",
           "-o", "KnownHostsCommand=/bin/true", "-o", "ConnectTimeout=3"]  # fmt: skip
    found = asked_options(ssh_argv(target(row("a100-1"), root=True), Path("/root/key"), options=own))
    assert found["stricthostkeychecking"] == "true"
    assert found["hostkeyalias"] == "lab-a100-1-k7q2mz"
    assert found["hostname"] == "100.64.0.7"
    assert found["knownhostscommand"] == f"/bin/echo lab-a100-1-k7q2mz {KEY}"
    assert found["userknownhostsfile"] == found["globalknownhostsfile"] == "/dev/null"
    assert (found["user"], found["connecttimeout"]) == ("me", "3"), "what is not the proof may be chosen"
    assert (found["identityfile"], found["identitiesonly"]) == ("/root/key", "yes")


def test_a_hostile_node_gets_nothing_of_roots(tmp_path: Path) -> None:
    """Whatever root's ssh_config gives to other hosts. SlurmUser keeps the host keys, so it chooses who is there."""
    config = tmp_path / "config"
    config.write_text(
        "Host *\n ForwardAgent yes\n ForwardX11 yes\n ForwardX11Trusted yes\n Tunnel yes\n PermitLocalCommand yes\n"
        " LocalCommand id\n GSSAPIAuthentication yes\n GSSAPIDelegateCredentials yes\n ControlMaster auto\n"
        f" ControlPath {tmp_path}/%r@%h\n ControlPersist yes\n NoHostAuthenticationForLocalhost yes\n"
        " PreferredAuthentications keyboard-interactive,password,publickey\n"
    )
    argv = ssh_argv(target(row("a100-1"), root=True), Path("/root/key"), options=["-F", str(config)])
    found = asked_options(argv)
    assert found["preferredauthentications"] == "publickey", "no question for a password"
    for name in ("forwardagent", "forwardx11", "tunnel", "permitlocalcommand", "nohostauthenticationforlocalhost"):
        assert found[name] in ("no", "false"), name
    assert (found["controlmaster"], found.get("controlpath", "none")) == ("false", "none"), "no connection of another"


def test_other_users_use_their_own_account_and_keys() -> None:
    argv = ssh_argv(target(row("a100-1"), root=True), None, words=["id"])
    assert argv[-2:] == ["a100-1", "id"]
    found = asked_options(argv)
    assert (found["user"], found["identitiesonly"]) == (os.environ.get("USER") or "root", "no")


@pytest.mark.parametrize(
    "change",
    [
        {"address": ""}, {"joined": False}, {"ssh_host_key": ""}, {"ssh_host_key": "ssh-ed25519 AAAA"},
        {"ssh_host_key": KEY + " -oProxyCommand=x"}, {"ssh_host_key": KEY + "%h"}, {"ssh_host_key": f"@cert {KEY}"},
        {"slot": "-oProxyCommand=x"}, {"machine": "a b"}, {"address": "100.64.0.7 -v"}, {"ssh_host_key": KEY + "\n"},
    ],
)  # fmt: skip
def test_what_a_node_reported_adds_no_words_to_a_command_line(change: dict[str, Any]) -> None:
    with pytest.raises(CliError):
        target(row("a100-1").model_copy(update=change), root=True)


def test_only_root_comes_in_to_pods() -> None:
    pod = row("a100-1", pod=True)
    assert target(pod, root=True).address == pod.address
    with pytest.raises(CliError) as caught:
        target(pod, root=False)
    assert "srun -w a100-1" in caught.value.cure


def test_ssh_becomes_the_users_process(
    nodes: SimHead, served: SimHead, meshctl: Meshctl, says: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, argv: calls.append([program, *argv[1:]]))
    assert meshctl("ssh", "-o", "A=b", "-L", "1:h:2", "a100-1", "--", "ls", "-l", "-o", "x").code == 0
    (argv,) = calls
    assert argv[0] == str(says.parent / "bin/ssh")
    assert argv[-5:] == ["a100-1", "ls", "-l", "-o", "x"]
    assert argv[argv.index("A=b") - 1 :][:4] == ["-o", "A=b", "-L", "1:h:2"]
    assert f"IdentityFile={says.parent / 'key'}" in argv
    assert meshctl("ssh", "h100-1").code == 1, "it is not on the tailnet"
    assert meshctl("ssh", "nonsense").code == 2
    (says.parent / "key").unlink()
    ran = meshctl("ssh", "a100-1")
    assert (ran.code, "meshctl init" in ran.err, len(calls)) == (1, True, 1)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert meshctl("ssh", "lab-a100-2-k7q2mz").code == 0
    assert not any("IdentityFile" in word or "User=" in word for word in calls[1])


def test_run_prefixes_lines_and_ends_with_the_worst_code(
    nodes: SimHead, served: SimHead, meshctl: Meshctl, says: Path
) -> None:
    ran = meshctl("run", "a100-[1-2]", "--", "echo hi from $NODE; echo '\033[31mred' >&2; exit ${NODE#a100-}")
    assert ran.code == 2
    assert sorted(ran.out.splitlines()) == ["a100-1: hi from a100-1", "a100-2: hi from a100-2"]
    assert "a100-1: exit code 1" in ran.err and "\033" not in ran.err
    assert "BatchMode=yes" in says.read_text().splitlines()
    assert meshctl("run", "a100", "--", "true").code == 255, "ssh fails for one of the pool"
    assert meshctl("run", "a100-1,a100-1,lab-a100-1-k7q2mz", "true").code == 0
    assert says.read_text().count("host a100-1\n") == 3, "each once"


def test_run_gathers_equal_output(nodes: SimHead, served: SimHead, meshctl: Meshctl, says: Path) -> None:
    ran = meshctl("run", "-b", "a100-[1-2]", "uname", "-s")
    assert (ran.code, ran.out) == (0, "---------------\na100-[1-2] (2)\n---------------\nLinux\n")
    ran = meshctl("run", "-b", "a100", "--", "echo $NODE")
    assert ran.code == 255
    assert [line for line in ran.out.splitlines() if line.startswith("a100")] == [
        "a100-1", "a100-1", "a100-2", "a100-2", "a100-9",
    ]  # fmt: skip
    assert "a100-9: exit code 255" in ran.err


def test_run_without_a_prefix_is_for_one_node(nodes: SimHead, served: SimHead, meshctl: Meshctl, says: Path) -> None:
    ran = meshctl("run", "--no-prefix", "a100-1", "--", "printf 'a\\tb'; exit 7")
    assert (ran.code, ran.out, ran.err) == (7, "a\tb", "")
    assert meshctl("run", "--no-prefix", "a100-[1-2]", "--", "true").code == 2
    assert meshctl("run", "--no-prefix", "-b", "a100-1", "--", "true").code == 2


def test_run_ends_what_takes_too_long(nodes: SimHead, served: SimHead, meshctl: Meshctl, says: Path) -> None:
    ran = meshctl("run", "--timeout", "300ms", "a100-1", "--", "echo begun; sleep 600")
    assert (ran.code, ran.out) == (124, "a100-1: begun\n")


def test_run_goes_on_without_those_that_cannot_be_reached(
    nodes: SimHead, served: SimHead, meshctl: Meshctl, says: Path
) -> None:
    ran = meshctl("run", "a100-1,h100-1", "--", "echo hi")
    assert (ran.code, ran.out) == (255, "a100-1: hi\n")
    assert "h100-1: " in ran.err
    assert meshctl("run", "h100-1", "--", "echo hi").code == 1
    assert meshctl("run", "h200", "--", "echo hi").code == 2
    assert meshctl("run", "a100-1").code == 2
    assert meshctl("run", "a100-1", "--").code == 2
