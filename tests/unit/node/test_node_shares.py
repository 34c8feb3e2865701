"""The agent's section `shares`: mounted, unmounted, looked at, and never touched by the agent itself."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.node.meshd_node import share_probe, shares
from deploy.node.meshd_node.errors import Hopeless, NodeError
from deploy.node.meshd_node.node import Node
from deploy.node.meshd_node.paths import Paths
from deploy.node.meshd_node.sections import Sections
from tests.unit.node.standins import WITHIN_S, program

MOUNT = """
echo "mount $*" >>"$STANDIN/calls"
if [ -e "$STANDIN/refuse" ]; then cat "$STANDIN/refuse" >&2; exit 32; fi
[ ! -e "$STANDIN/hang" ] || exec sleep 600
eval device=\\${$(($# - 1))} point=\\$$#
echo "1 2 0:3 / $point rw,nosuid - nfs4 $device rw" >>"$STANDIN/self/mountinfo"
"""
UMOUNT = """
echo "umount $*" >>"$STANDIN/calls"
eval point=\\$$#
case "$*" in *-l*) ;; *) if [ -e "$STANDIN/busy" ]; then echo "umount: $point: target is busy." >&2; exit 32; fi ;; esac
grep -v " / $point " "$STANDIN/self/mountinfo" >"$STANDIN/left"
mv "$STANDIN/left" "$STANDIN/self/mountinfo"
"""
STAT = """
while [ -e "$STANDIN/hang" ]; do sleep 0.05; done
[ ! -e "$STANDIN/stale" ] || { echo "stat: cannot read this: $(cat "$STANDIN/stale")" >&2; exit 1; }
"""


class Machine:
    """A machine whose mount, umount and stat are scripts: they keep a list of mounts in the kernel's form."""

    def __init__(self, tmp: Path, port: int) -> None:
        self.tmp, self.port = tmp, port
        self.list = tmp / "self/mountinfo"
        self.list.parent.mkdir()
        self.list.write_text(f"1 2 8:1 / {tmp / 'root'} rw - ext4 /dev/sda1 rw\n")
        (tmp / "root/run/systemd/system").mkdir(parents=True)
        (tmp / "calls").write_text("")
        self.node = Node(Paths(tmp / "root", proc=tmp), tun=True)
        self.node.state.conf_server = "127.0.0.1:6817"

    def value(self, *paths: str, options: tuple[str, ...] = ("vers=4.2", "hard")) -> dict[str, Any]:
        more = [*options, f"port={self.port}"]
        return {"shares": [{"path": path, "server": "", "source": path, "options": more} for path in paths]}

    def apply(self, *paths: str, options: tuple[str, ...] = ("vers=4.2", "hard")) -> None:
        shares.apply(self.node, self.value(*paths, options=options), lambda _text: None)

    def mounted(self) -> list[str]:
        """Paths with shares, in order."""
        lines = [line.split(" ") for line in self.list.read_text().splitlines() if " nfs4 " in line]
        return [line[4].removeprefix(str(self.tmp / "root")) for line in lines]

    def calls(self) -> list[str]:
        """The programs that ran since the last time."""
        text = (self.tmp / "calls").read_text()
        (self.tmp / "calls").write_text("")
        return [line.split()[0] for line in text.splitlines()]

    def mark(self, name: str, text: str = "") -> None:
        (self.tmp / name).write_text(text)

    def unmark(self, name: str) -> None:
        (self.tmp / name).unlink()


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """Something that accepts connections, as an NFS server does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def machine(tmp_path: Path, server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("mount", MOUNT), ("umount", UMOUNT), ("stat", STAT), ("mount.nfs4", "")):
        program(tools, name, text)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("STANDIN", str(tmp_path))
    made = Machine(tmp_path, server.getsockname()[1])
    yield made
    for point in list(share_probe._probes):
        share_probe.stop(point)
    for child in share_probe._ended:
        child.wait(WITHIN_S)
    share_probe.stop(tmp_path)


def within(look: Callable[[], object]) -> None:
    end = time.monotonic() + WITHIN_S
    while not look():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_is_wanted_is_mounted_once(machine: Machine) -> None:
    machine.apply("/home", "/srv/data")
    assert machine.mounted() == ["/home", "/srv/data"]
    assert machine.calls() == ["mount", "mount"]
    machine.apply("/home", "/srv/data")
    assert machine.calls() == []


def test_a_mount_has_the_options_and_does_not_try_for_minutes(machine: Machine) -> None:
    machine.apply("/home")
    (call,) = (machine.tmp / "calls").read_text().splitlines()
    options = f"vers=4.2,hard,port={machine.port},retry=0"
    assert call == f"mount -t nfs4 -o {options} 127.0.0.1:/home {machine.tmp}/root/home"


def test_after_a_reboot_it_is_mounted_again(machine: Machine) -> None:
    machine.apply("/home")
    machine.list.write_text("")
    machine.apply("/home")
    assert machine.mounted() == ["/home"]


def test_a_directory_with_files_is_mounted_over(machine: Machine) -> None:
    kept = machine.tmp / "root/home/ubuntu/file"
    kept.parent.mkdir(parents=True)
    kept.write_text("of the image")
    machine.apply("/home")
    assert machine.mounted() == ["/home"]
    assert kept.read_text() == "of the image"


def test_where_the_image_has_a_link_the_share_is_mounted_once_behind_it(machine: Machine) -> None:
    (machine.tmp / "root/mnt/home").mkdir(parents=True)
    (machine.tmp / "root/home").symlink_to(machine.tmp / "root/mnt/home")
    for _ in range(2):
        machine.apply("/home")
        assert machine.mounted() == ["/mnt/home"]
        assert not shares.faults(machine.node, machine.value("/home"))
    assert machine.calls() == ["mount"]
    machine.apply()
    assert machine.mounted() == []


def test_what_is_wanted_no_more_is_unmounted_and_nothing_of_others(machine: Machine) -> None:
    others = f"5 6 0:9 / {machine.tmp}/root/mnt rw - nfs4 127.0.0.1:/mnt rw\n"
    machine.list.write_text(machine.list.read_text() + others)
    machine.apply("/home", "/srv/data")
    machine.apply("/home")
    assert machine.mounted() == ["/mnt", "/home"]
    machine.apply()
    assert machine.mounted() == ["/mnt"]


def test_a_share_that_is_used_stays_and_that_is_said(machine: Machine) -> None:
    machine.apply("/home")
    user = machine.tmp / "123"
    (user / "fd").mkdir(parents=True)
    (user / "comm").write_text("python3\n")
    (user / "cwd").symlink_to(machine.tmp / "root/home/alice")
    machine.mark("busy")
    with pytest.raises(NodeError, match=r"python3 \(123\)"):
        machine.apply()
    assert machine.mounted() == ["/home"]
    machine.unmark("busy")
    machine.apply()
    assert machine.mounted() == []


def test_other_options_are_put_in_force_by_a_new_mount(machine: Machine) -> None:
    machine.apply("/home")
    machine.calls()
    machine.apply("/home", options=("vers=4.2", "hard", "ro"))
    assert machine.calls() == ["umount", "mount"]
    assert machine.mounted() == ["/home"]


def test_a_refused_mount_is_tried_again_and_does_not_keep_the_others_away(machine: Machine) -> None:
    machine.mark("refuse", "mount.nfs4: access denied by server while mounting 127.0.0.1:/home\n")
    with pytest.raises(NodeError) as refused:
        machine.apply("/home")
    assert not isinstance(refused.value, Hopeless)
    machine.unmark("refuse")
    machine.apply("/home")
    assert machine.mounted() == ["/home"]


def test_a_kernel_without_nfs_cannot_be_helped(machine: Machine) -> None:
    machine.mark("refuse", "mount: /home: unknown filesystem type 'nfs4'.\n")
    with pytest.raises(Hopeless):
        machine.apply("/home")


def test_a_container_cannot_mount(machine: Machine) -> None:
    machine.node.systemd = False
    machine.apply()
    with pytest.raises(Hopeless):
        machine.apply("/home")


def test_a_server_that_does_not_answer_is_said_before_mount_waits_in_the_kernel(
    machine: Machine, server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "ANSWER_S", 0.1)
    server.close()
    with pytest.raises(NodeError, match="does not answer"):
        machine.apply("/home")
    assert machine.calls() == []


def test_a_mount_that_hangs_is_ended(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "MOUNT_S", 0.2)
    machine.mark("hang")
    with pytest.raises(NodeError, match="did not finish"):
        machine.apply("/home")


def test_a_machine_that_leaves_unmounts_even_what_is_used(machine: Machine) -> None:
    machine.apply("/home", "/srv/data")
    machine.mark("busy")
    machine.node.state.left = True
    shares.leave(machine.node)
    assert machine.mounted() == []
    machine.apply("/home")
    assert machine.mounted() == [], "nothing is mounted on a machine that has left"


def test_a_machine_that_shuts_down_detaches_and_mounts_again_after_the_boot(machine: Machine) -> None:
    machine.apply("/home")
    machine.mark("busy")
    shares.detach(machine.node)
    assert machine.mounted() == []
    machine.apply("/home")
    assert machine.mounted() == ["/home"]


def test_a_share_that_does_not_answer_is_lost_and_comes_back(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_probe, "LOST_S", 0.2)
    machine.apply("/home")
    value = machine.value("/home")
    within(lambda: not shares.faults(machine.node, value))
    machine.mark("hang")
    within(lambda: shares.faults(machine.node, value))
    (lost,) = shares.faults(machine.node, value)
    assert not lost.again, "to mount it again would hang as well"
    machine.unmark("hang")
    within(lambda: not shares.faults(machine.node, value))


def test_a_share_that_is_gone_from_the_server_is_mounted_again(machine: Machine) -> None:
    machine.apply("/home")
    value = machine.value("/home")
    machine.mark("stale", "Stale file handle")
    within(lambda: [one.again for one in shares.faults(machine.node, value)] == [True])
    machine.calls()
    machine.unmark("stale")
    machine.apply("/home")
    assert machine.calls() == ["umount", "mount"]
    within(lambda: not shares.faults(machine.node, value))


def test_a_share_that_somebody_unmounted_is_mounted_again(machine: Machine) -> None:
    held = Sections(machine.node, quiet_failures=0)
    held.put("shares", "a" * 16, machine.value("/home"))
    held.start(lambda: None)
    within(lambda: held.report()["shares"]["state"] == "applied")
    machine.list.write_text("")
    held.look()
    within(lambda: machine.mounted() == ["/home"] and held.report()["shares"]["state"] == "applied")
    held.look()
    assert held.faults() == []
    held.put("shares", "b" * 16, machine.value())
    within(lambda: machine.mounted() == [] and held.report()["shares"]["state"] == "applied")


def test_a_missing_share_is_a_fault_that_the_head_knows(machine: Machine) -> None:
    (one,) = shares.faults(machine.node, machine.value("/home"))
    assert (one.code, one.again) == ("share_lost", True)


@pytest.mark.parametrize(
    "share",
    [{}, {"path": "home"}, {"server": "a b"}, {"server": "-o x"}, {"source": "x"}, {"source": "/a b"},
     {"source": "/a,soft"},
     {"options": ["ro,soft"]}, {"options": None}],
)  # fmt: skip
def test_a_value_that_is_no_share_is_refused(machine: Machine, share: dict[str, Any]) -> None:
    good: dict[str, Any] = {"path": "/home", "server": "", "source": "/home", "options": []}
    assert shares.shares_of(machine.node, {"shares": [good]})
    with pytest.raises((KeyError, TypeError, ValueError)):
        shares.shares_of(machine.node, {"shares": [{**good, **share} if share else {}]})
    assert json.loads(json.dumps(good)) == good


def test_a_missing_package_brings_no_service_that_listens(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine.tmp / "bin/mount.nfs4").unlink()
    monkeypatch.setattr(shares, "find", lambda name: "" if name == "mount.nfs4" else name)
    asked: list[list[str]] = []
    monkeypatch.setattr(shares, "ensure", lambda _paths, names, _tell: asked.append(list(names)))
    machine.apply("/home")
    assert asked == [["nfs-common"]]
    for unit in ("rpcbind.service", "rpcbind.socket", "rpc-statd.service"):
        assert os.readlink(machine.node.paths.units / unit) == "/dev/null"
