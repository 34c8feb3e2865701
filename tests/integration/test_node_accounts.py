"""The section `accounts` on a machine's real files: tables, modes, homes, locks."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.node.meshd_node import account_files, accounts, files
from deploy.node.meshd_node.account_merge import BLOCKS, LEFT_OUT
from deploy.node.meshd_node.errors import NodeError, NotPossible
from deploy.node.meshd_node.paths import Paths
from deploy.node.meshd_node.state import State

pytestmark = [pytest.mark.integration, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

PASSWD = "root:x:0:0:root:/root:/bin/bash\nubuntu:x:1000:1000:Ubuntu:/home/ubuntu:/bin/bash\n+::::::\n"
GROUP = "root:x:0:\nsudo:x:27:ubuntu\nubuntu:x:1000:\n"
SHADOW = "root:*:1:0:99999:7:::\nubuntu:$6$salt$hash:1:0:99999:7:::\n"
HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


class Machine:
    """The files of a machine, and its processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.systemd = True
        self.paths = Paths(root, root / "proc")
        for directory in ("etc/skel", "home/ubuntu/.ssh", "proc", "bin", "var/lib"):
            (root / directory).mkdir(parents=True)
        for name, text in (("passwd", PASSWD), ("group", GROUP), ("shadow", SHADOW), ("gshadow", "root:*::\n")):
            (root / "etc" / name).write_text(text)
        (root / "etc/shadow").chmod(0o640)
        os.chown(root / "etc/shadow", 0, 42)
        (root / "etc/skel/.profile").write_text("# profile\n")
        (root / "bin/bash").touch()
        (root / "home/ubuntu/.ssh/authorized_keys").write_text("ssh-ed25519 AAAA\n")
        for path in (root / "home/ubuntu", *(root / "home/ubuntu").rglob("*")):
            os.chown(path, 1000, 1000)
        (root / "home/ubuntu/link").symlink_to(root / "etc/passwd")
        self.told: list[str] = []

    @property
    def node(self) -> Any:
        return SimpleNamespace(paths=self.paths, systemd=self.systemd, state=State(slurm_uid=1900, munge_uid=1901))

    def apply(self, value: dict[str, Any]) -> None:
        accounts.apply(self.node, value, self.told.append)

    def faults(self, value: dict[str, Any]) -> dict[str, str]:
        return {fault.code: fault.detail for fault in accounts.faults(self.node, value)}

    def text(self, name: str) -> str:
        return (self.root / "etc" / name).read_text()

    def lines(self, name: str, key: str) -> list[str]:
        return [line for line in self.text(name).splitlines() if line.startswith(f"{key}:")]

    def runs(self, uid: int) -> None:
        """A process of this user."""
        (self.root / f"proc/{uid}").mkdir()
        (self.root / f"proc/{uid}/status").write_text(f"Name:\tsleep\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")

    def ended(self, uid: int) -> None:
        (self.root / f"proc/{uid}/status").unlink()
        (self.root / f"proc/{uid}").rmdir()

    def owner(self, path: str) -> tuple[int, int, int]:
        seen = (self.root / path).lstat()
        return seen.st_uid, seen.st_gid, stat.S_IMODE(seen.st_mode)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def user(name: str, uid: int, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "uid": uid, "gid": uid, "gecos": "", "home": f"/home/{name}", "shell": "/bin/bash",
        "subuid": [uid * 100_000, 65_536], "subgid": [uid * 100_000, 65_536], **more,
    }  # fmt: skip


def wanted(*users: dict[str, Any], **more: Any) -> dict[str, Any]:
    groups = [{"name": one["name"], "gid": one["uid"], "members": []} for one in users]
    return {"users": list(users), "groups": groups, **more}


STUDENT = user("student", 1001)


def test_a_user_comes_and_goes(machine: Machine) -> None:
    before = {name: machine.text(name) for name in ("passwd", "group", "shadow", "gshadow")}
    machine.apply(wanted(STUDENT))
    assert machine.lines("passwd", "student") == ["student:x:1001:1001::/home/student:/bin/bash"]
    assert machine.text("passwd").splitlines()[-1] == "+::::::"
    assert machine.lines("group", "student") == ["student:x:1001:"]
    assert machine.lines("shadow", "student") == ["student:!:::::::"]
    assert machine.lines("subuid", "student") == ["student:100100000:65536"]
    assert machine.owner("etc/shadow") == (0, 42, 0o640)
    assert machine.owner("home/student") == (1001, 1001, 0o700)
    assert machine.owner("home/student/.profile")[:2] == (1001, 1001)
    assert machine.text("meshd-node/cluster-users") == "student\n"
    assert machine.faults(wanted(STUDENT)) == {}
    inodes = [(machine.root / "etc" / name).stat().st_ino for name in before]
    machine.apply(wanted(STUDENT))
    assert inodes == [(machine.root / "etc" / name).stat().st_ino for name in before]

    machine.apply(wanted())
    assert {name: machine.text(name) for name in before} == before
    assert machine.owner("home/student") == (0, 0, 0o700)
    assert machine.text("meshd-node/cluster-users") == ""

    machine.apply(wanted(STUDENT))
    assert machine.owner("home/student") == (1001, 1001, 0o700)


def test_another_user_of_the_same_name_does_not_get_the_files(machine: Machine) -> None:
    machine.apply(wanted(STUDENT))
    (machine.root / "home/student/secret").write_text("x")
    machine.apply(wanted())
    machine.apply(wanted(user("student", 1002)))
    assert machine.owner("home/student") == (1002, 1002, 0o700)
    assert not (machine.root / "home/student/secret").exists()
    assert machine.owner("home/student.1001") == (0, 0, 0o700)


def test_a_removed_user_stays_while_a_process_of_his_runs(machine: Machine) -> None:
    machine.apply(wanted(STUDENT))
    machine.runs(1001)
    machine.apply(wanted())
    assert machine.lines("passwd", "student") and machine.lines("group", "student")
    assert machine.owner("home/student")[0] == 1001
    assert machine.faults(wanted()) == {}
    assert machine.lines("passwd", "student")
    machine.ended(1001)
    machine.faults(wanted())
    assert not machine.lines("passwd", "student") and not machine.lines("group", "student")
    assert machine.owner("home/student") == (0, 0, 0o700)


def test_a_user_with_another_number(machine: Machine) -> None:
    machine.apply(wanted(STUDENT))
    (machine.root / "home/student/data").write_text("x")
    os.chown(machine.root / "home/student/data", 1001, 1001)
    machine.apply(wanted(user("student", 1005)))
    assert machine.owner("home/student/data")[:2] == (1005, 1005)
    assert machine.lines("passwd", "student") == ["student:x:1005:1005::/home/student:/bin/bash"]


def test_an_account_of_the_image_gets_out_of_the_way(machine: Machine) -> None:
    machine.apply(wanted(user("student", 1000)))
    (line,) = machine.lines("passwd", "ubuntu")
    uid = int(line.split(":")[2])
    assert uid == 59_999 == int(line.split(":")[3])
    assert machine.owner("home/ubuntu")[:2] == (uid, uid)
    assert machine.owner("home/ubuntu/.ssh/authorized_keys")[:2] == (uid, uid)
    assert machine.owner("etc/passwd")[:2] == (0, 0)
    assert machine.lines("group", "sudo") == ["sudo:x:27:ubuntu"]
    assert machine.lines("shadow", "ubuntu") == ["ubuntu:$6$salt$hash:1:0:99999:7:::"]
    told = machine.faults(wanted(user("student", 1000)))[accounts.MOVED]
    assert told.count("ubuntu") == 2 and "a user has 1000" in told, "the account and its group"
    assert machine.owner("home/student") == (1000, 1000, 0o700)


def test_an_account_of_the_image_with_a_users_name(machine: Machine) -> None:
    machine.apply(wanted(user("ubuntu", 1007)))
    assert machine.lines("passwd", "ubuntu") == ["ubuntu:x:1007:1007::/home/ubuntu:/bin/bash"]
    assert machine.owner("home/ubuntu/.ssh/authorized_keys")[:2] == (1007, 1007)
    assert machine.lines("shadow", "ubuntu") == ["ubuntu:!:::::::"]
    machine.apply(wanted())
    assert machine.text("passwd") == PASSWD and machine.text("shadow") == SHADOW
    assert machine.owner("home/ubuntu/.ssh/authorized_keys")[:2] == (1000, 1000)


@pytest.mark.parametrize("busy", [True, False])
def test_a_clash_blocks_and_ends(machine: Machine, busy: bool) -> None:
    mode = "move" if busy else "keep"
    value = wanted(user("student", 1000), user("other", 1003), image_accounts=mode)
    if busy:
        machine.runs(1000)
    with pytest.raises(NotPossible):
        machine.apply(value)
    assert machine.lines("passwd", "ubuntu")[0].startswith("ubuntu:x:1000:")
    assert machine.lines("passwd", "other") and not machine.lines("passwd", "student")
    assert set(machine.faults(value)) >= {BLOCKS}
    if busy:
        machine.ended(1000)
        assert BLOCKS not in machine.faults(value)
        assert machine.lines("passwd", "student")
        machine.apply(value)


def test_no_user_gets_a_group_of_the_image_by_its_number(machine: Machine) -> None:
    """E.g. Google's images: members of google-sudoers, which has a number like a user's, may use sudo."""
    with (machine.root / "etc/group").open("a") as file:
        file.write("google-sudoers:x:1005:\n")
    value = {**wanted(user("student", 1001, gid=1005)), "groups": []}
    with pytest.raises(NotPossible):  # the head has no name for it: there is nothing to move it for
        machine.apply(value)
    value["groups"] = [{"name": "lab", "gid": 1005, "members": ["student"]}]
    with pytest.raises(NotPossible):
        machine.apply({**value, "image_accounts": "keep"})
    machine.apply(value)
    (sudoers,) = machine.lines("group", "google-sudoers")
    assert sudoers.split(":")[2] not in ("1005", "") and sudoers.endswith(":")
    assert machine.faults(value).keys() <= {accounts.MOVED}
    machine.apply(value)
    assert machine.lines("group", "google-sudoers") == [sudoers]


def test_no_user_has_a_group_of_the_system_as_primary_group(machine: Machine) -> None:
    """What is `lab` on the head may be `sudo` on a node."""
    with (machine.root / "etc/group").open("a") as file:
        file.write("users:x:100:\n")
    value = {
        **wanted(user("root2", 1001, gid=27), user("plain", 1002, gid=100), user("old", 1003, gid=500)),
        "groups": [],
    }
    machine.apply(value)
    assert not machine.lines("passwd", "root2")
    assert machine.lines("passwd", "plain") and machine.lines("passwd", "old")
    assert "root2" in machine.faults(value)[LEFT_OUT]


def test_a_system_account_has_the_name(machine: Machine) -> None:
    with (machine.root / "etc/passwd").open("a") as file:
        file.write("postgres:x:110:110::/var/lib/postgresql:/bin/bash\n")
    value = wanted(user("postgres", 1004))
    machine.apply(value)
    assert machine.lines("passwd", "postgres") == ["postgres:x:110:110::/var/lib/postgresql:/bin/bash"]
    assert set(machine.faults(value)) == {LEFT_OUT}


def test_a_home_on_a_share_is_not_made_nor_taken(machine: Machine) -> None:
    machine.apply(wanted(STUDENT, shares=["/home"]))
    assert not (machine.root / "home/student").exists()
    (machine.root / "home/student").mkdir()
    os.chown(machine.root / "home/student", 1001, 1001)
    machine.apply(wanted(shares=["/home"]))
    assert machine.owner("home/student")[0] == 1001
    machine.apply(wanted(user("new", 1000), shares=["/home"]))
    assert machine.owner("home/ubuntu")[0] == 1000, "files on a share belong to the head's users"


def test_the_daemons_accounts_are_not_the_heads_to_give(machine: Machine) -> None:
    rows = "slurm:x:1900:1900::/nonexistent:/usr/sbin/nologin\nmunge:x:1901:1901::/nonexistent:/usr/sbin/nologin\n"
    (machine.root / "etc/passwd").write_text(PASSWD.replace("+", f"{rows}+", 1))
    before = machine.text("passwd")
    machine.apply(wanted(user("hpc", 1900), user("munge", 1005)))
    assert machine.text("passwd") == before
    assert not machine.lines("group", "hpc")


@pytest.mark.parametrize("systemd", [True, False])
def test_ssh_needs_a_job_on_machines_that_are_no_pods(machine: Machine, systemd: bool) -> None:
    machine.systemd = systemd
    (machine.root / "etc/pam.d").mkdir()
    (machine.root / "etc/pam.d/sshd").write_text("@include common-account\n")
    machine.apply(wanted(STUDENT))
    assert machine.text("pam.d/sshd") == "@include common-account\n"
    (machine.root / "lib/security").mkdir(parents=True)
    (machine.root / "lib/security/pam_slurm_adopt.so").touch()  # as `packages` installs it later
    (machine.root / "run/slurm/conf").mkdir(parents=True)
    (machine.root / "run/slurm/conf/slurm.conf").write_text("ClusterName=lab\n")
    found = machine.faults(wanted(STUDENT))
    assert ("pam_slurm_adopt" in machine.text("pam.d/sshd")) is systemd
    assert set(found) == ({accounts.NOT_ADOPTED} if systemd else set())


def test_a_share_that_is_given_up(machine: Machine) -> None:
    """Its users get homes on the machine when it is gone."""
    machine.apply(wanted(STUDENT, shares=["/home"]))
    shared = machine.root / "home/student"
    shared.mkdir()
    machine.apply(wanted(STUDENT))
    assert machine.owner("home/student")[:2] == (0, 0), "it is there: it may be another machine's"
    shared.rmdir()
    machine.faults(wanted(STUDENT))
    assert machine.owner("home/student") == (1001, 1001, 0o700)


def test_a_home_that_cannot_be_made(machine: Machine) -> None:
    value = wanted(
        user("student", 1001, home="/etc/passwd/student"), user("other", 1002), user("none", 1003, home="/nonexistent")
    )
    machine.apply(value)
    assert machine.owner("home/other")[0] == 1002
    assert set(machine.faults(value)) == {LEFT_OUT}
    assert not (machine.root / "nonexistent").exists()


@pytest.mark.parametrize("plant", ["link", "directory", "open"])
def test_a_home_below_a_directory_of_others_gives_nothing_away(machine: Machine, plant: str) -> None:
    """A user plants something where another's home will be: root follows no link, and nobody gets that directory."""
    lab = machine.root / "home/lab"
    lab.mkdir()
    (machine.root / "precious").mkdir(mode=0o755)
    if plant == "link":
        (lab / "student").symlink_to(machine.root / "precious")
        os.chown(lab, 1500, 1500)
    elif plant == "directory":
        lab.chmod(0o1777)  # as /tmp
        (lab / "student").mkdir()
        os.chown(lab / "student", 1500, 1500)
    else:
        lab.chmod(0o777)
    student = user("student", 1001, home="/home/lab/student/x" if plant == "link" else "/home/lab/student")
    other = user("other", 1002)
    machine.apply(wanted(student, other))
    assert (machine.owner("precious"), list((machine.root / "precious").iterdir())) == ((0, 0, 0o755), [])
    assert "/home/lab" in machine.faults(wanted(student, other))[LEFT_OUT]
    assert machine.owner("home/other") == (1002, 1002, 0o700), "it keeps nobody else off"
    machine.apply(wanted())
    assert machine.owner("precious") == (0, 0, 0o755)


def test_a_home_in_a_directory_for_all_is_made(machine: Machine) -> None:
    (machine.root / "scratch").mkdir()
    (machine.root / "scratch").chmod(0o1777)
    machine.apply(wanted(user("student", 1001, home="/scratch/lab/student")))
    assert machine.owner("scratch/lab/student") == (1001, 1001, 0o700)
    assert machine.owner("scratch/lab")[0] == 0


def test_an_account_that_moves_takes_nothing_on_other_file_systems_along(machine: Machine) -> None:
    inside = machine.root / "home/ubuntu/mnt"
    inside.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "uid=1000,gid=1000", "none", str(inside)], check=True)
    try:
        machine.apply(wanted(user("student", 1000)))
        assert machine.owner("home/ubuntu/mnt")[:2] == (1000, 1000)
    finally:
        subprocess.run(["umount", str(inside)], check=True)
    assert machine.owner("home/ubuntu/.ssh")[0] == 59_999


def test_what_somebody_changes_on_the_node_is_put_back(machine: Machine) -> None:
    machine.apply(wanted(STUDENT))
    lines = [line for line in machine.text("passwd").splitlines() if not line.startswith("student:")]
    (machine.root / "etc/passwd").write_text("".join(f"{line}\n" for line in lines))
    machine.faults(wanted(STUDENT))
    assert machine.lines("passwd", "student")


def test_a_shell_that_is_not_there(machine: Machine) -> None:
    value = wanted(user("student", 1001, shell="/usr/bin/zsh"))
    machine.apply(value)
    assert machine.lines("passwd", "student")[0].endswith(":/usr/bin/zsh")
    assert set(machine.faults(value)) == {accounts.SHELL_MISSING}


@pytest.mark.parametrize(
    "one",
    [
        user("root", 0), user("low", 999), user("nobody2", 65534), user("a:b", 1002), user("x\ny", 1002),
        user("x", 1002, gecos="a:0:0"), user("x", 1002, home="relative"), user("x", 1002, home="/home/../etc"),
        user("x", 1002, shell="/bin/sh\nroot2:x:0:0::/:/bin/sh"), user("x", 1002, gid=0), {"name": "x", "uid": 1002},
        user("x", 1002, subuid=[0, 65536]), user("student", 1003),
    ],
)  # fmt: skip
def test_what_no_node_does(machine: Machine, one: dict[str, Any]) -> None:
    with pytest.raises(NotPossible):
        machine.apply(wanted(STUDENT, one))
    assert machine.text("passwd") == PASSWD


def test_useradds_lock(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", HOLD, str(machine.paths.accounts_lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        holder.stdout.readline()
        monkeypatch.setattr(account_files, "LOCK_S", 0.1)
        with pytest.raises(account_files.TablesLocked):
            machine.apply(wanted(STUDENT))
        holder.stdin.close()
    machine.apply(wanted(STUDENT))
    assert machine.lines("passwd", "student")


def test_a_table_without_root_is_not_changed(machine: Machine) -> None:
    (machine.root / "etc/passwd").write_text("")
    with pytest.raises(NodeError):
        machine.apply(wanted(STUDENT))
    assert machine.text("passwd") == ""


def test_a_power_cut_between_the_files(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: machine.text(name) for name in ("passwd", "group", "shadow", "gshadow")}
    real = files.replace_keeping

    def cut(path: Path, data: bytes, mode: int) -> None:
        if path.name == "passwd":
            raise OSError("no space")
        real(path, data, mode)

    monkeypatch.setattr(account_files, "replace_keeping", cut)
    with pytest.raises(OSError, match="no space"):
        machine.apply(wanted(user("ubuntu", 1007), STUDENT))
    assert machine.text("shadow") != SHADOW
    monkeypatch.setattr(account_files, "replace_keeping", real)
    machine.apply(wanted())
    assert {name: machine.text(name) for name in before} == before


@pytest.mark.parametrize("after", [[user("student", 1000)], [STUDENT], []])
@pytest.mark.parametrize("first", ["group", "gshadow", "passwd"])
def test_a_power_cut_while_an_account_of_the_image_moves(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, first: str, after: list[dict[str, Any]]
) -> None:
    """Its files have their new owner before the tables do, and its group before the account: whatever is wanted then,
    it gets the numbers that were begun."""
    real = files.replace_keeping

    def cut(path: Path, data: bytes, mode: int) -> None:
        if path.name == first:
            raise OSError("no space")
        real(path, data, mode)

    monkeypatch.setattr(account_files, "replace_keeping", cut)
    with pytest.raises(OSError, match="no space"):
        machine.apply(wanted(user("student", 1000)))
    assert machine.owner("home/ubuntu")[:2] == (59_999, 59_999)
    assert machine.lines("passwd", "ubuntu") == ["ubuntu:x:1000:1000:Ubuntu:/home/ubuntu:/bin/bash"]
    monkeypatch.setattr(account_files, "replace_keeping", real)
    machine.apply(wanted(*after))
    (line,), (group,) = machine.lines("passwd", "ubuntu"), machine.lines("group", "ubuntu")
    gid = int(group.split(":")[2])
    assert line.startswith(f"ubuntu:x:59999:{gid}:"), "the account is in its own group, whatever number that has"
    assert gid == 59_999 or (first == "group" and after != [user("student", 1000)])
    assert machine.owner("home/ubuntu")[:2] == machine.owner("home/ubuntu/.ssh/authorized_keys")[:2] == (59_999, gid)
    state = json.loads(machine.paths.accounts_state.read_text())
    assert state["renumbering"] == {"accounts": {}, "groups": {}}


def test_many_users(machine: Machine) -> None:
    many = [user(f"u{at}", 2000 + at, subuid=[], subgid=[]) for at in range(5000)]
    value = wanted(*many, shares=["/home"])
    machine.apply(json.loads(json.dumps(value)))
    assert len(machine.text("passwd").splitlines()) == 5003
