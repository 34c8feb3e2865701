"""What applying a plan keeps, refuses, and leaves when it is cut off."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from meshd.cli import init_input
from meshd.runtime.rootfs import Kind, RootFs
from meshd.slurm.init.apply import apply_init, check_init
from meshd.slurm.init.codes import InitRefused, Refusal
from tests.unit.slurm.init_of_root import ADDRESS, NOW, init, plan_of, settings

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="init runs as root")

CONF = """\
ClusterName=lab
SlurmctldHost=head(100.64.0.1)
SlurmUser=slurm
NodeName=rack1 CPUs=1
PartitionName=p Nodes=rack1
"""
PASSWD = "root:x:0:0::/:/bin/sh\nslurm:x:4711:4712::/:/bin/false\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "image"
    (root / "etc/slurm").mkdir(parents=True)
    (root / "etc/passwd").write_text(PASSWD)
    (root / "etc/hostname").write_text("head.example.org\n")
    (root / "etc/slurm/slurm.conf").write_text(CONF)
    return root


def texts(root: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(root.rglob("*")):
        found[str(path.relative_to(root))] = (
            os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        )
    return found


def test_a_second_run_has_nothing_to_do(root: Path) -> None:
    init(root)
    assert plan_of(root).empty
    (root / "var/lib/meshd-slurm/nodes.conf").unlink()
    plan = plan_of(root)
    assert (plan.empty, plan.files, plan.links) == (False, (), ())
    init(root)
    assert plan_of(root).empty
    assert (root / "var/lib/meshd-slurm/nodes.conf").exists()


def test_owner_mode_and_attributes_stay(root: Path) -> None:
    conf = root / "etc/slurm/slurm.conf"
    os.chown(conf, 4711, 4712)
    conf.chmod(0o600)
    os.setxattr(conf, "trusted.site", b"kept")
    copy = init(root)[PurePosixPath("/etc/slurm/slurm.conf")]
    assert "Include nodes.conf" in conf.read_text()
    for path in (conf, copy):
        seen = path.stat()
        assert (seen.st_uid, seen.st_gid, seen.st_mode & 0o7777) == (4711, 4712, 0o600)
        assert os.getxattr(path, "trusted.site") == b"kept"


def test_an_access_list_stays(root: Path) -> None:
    conf = root / "etc/slurm/slurm.conf"
    entries = ((1, 6, -1), (2, 4, 4711), (4, 4, -1), (0x10, 4, -1), (0x20, 0, -1))  # tag, permissions, user or group
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.setxattr(conf, "system.posix_acl_access", acl)
    copy = init(root)[PurePosixPath("/etc/slurm/slurm.conf")]
    assert [os.getxattr(path, "system.posix_acl_access") for path in (conf, copy)] == [acl, acl]


def test_hard_links_stay(root: Path) -> None:
    conf, other = root / "etc/slurm/slurm.conf", root / "etc/other.conf"
    os.link(conf, other)
    init(root)
    assert conf.samefile(other)
    assert "Include nodes.conf" in other.read_text()


@pytest.mark.parametrize("what", ["file", "directory", "relative", "above"])
def test_links_of_an_image_stay_and_lead_nowhere_outside_of_it(root: Path, tmp_path: Path, what: str) -> None:
    outside = tmp_path / "outside/slurm.conf"
    outside.parent.mkdir()
    outside.write_text(CONF)
    inside = root / str(outside)[1:] if what != "directory" else root / "data/slurm/slurm.conf"
    conf = root / "etc/slurm/slurm.conf"
    inside.parent.mkdir(parents=True)
    conf.rename(inside)
    if what == "directory":
        conf.parent.rmdir()
        conf.parent.symlink_to("/data/slurm")
    elif what == "file":
        conf.symlink_to(outside)
    elif what == "relative":
        conf.symlink_to(os.path.relpath(inside, conf.parent))
    else:
        conf.symlink_to("../../../../../../../../.." + str(outside))
    init(root)
    assert outside.read_text() == CONF
    assert "Include nodes.conf" in inside.read_text()
    assert (conf.parent if what == "directory" else conf).is_symlink()
    assert plan_of(root).empty


@pytest.mark.parametrize("name", ["slurm.conf", "gres.conf", "cgroup.conf"])
@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda path: path.mkdir(), Refusal.NOT_A_FILE),
        (os.mkfifo, Refusal.NOT_A_FILE),
        (lambda path: path.symlink_to(path.name), Refusal.LINK_LOOP),
        (lambda path: path.symlink_to("/etc/slurm/gone"), Refusal.LINK_DANGLES),
    ],
)
def test_what_is_no_file_is_refused(root: Path, name: str, make: Callable[[Path], None], code: Refusal) -> None:
    path = root / "etc/slurm" / name
    path.unlink(missing_ok=True)
    make(path)
    with pytest.raises(InitRefused) as caught:
        plan_of(root)
    assert caught.value.code is code


@pytest.mark.parametrize("by", ["file", "link"])
def test_a_nodes_conf_of_the_users_is_left_alone(root: Path, by: str) -> None:
    theirs = root / "etc/slurm/nodes.conf"
    site = root / "srv/site-nodes.conf"
    site.parent.mkdir()
    (theirs if by == "file" else site).write_text("NodeName=rack2 CPUs=1\n")
    if by == "link":
        theirs.symlink_to("/srv/site-nodes.conf")
    with (root / "etc/slurm/slurm.conf").open("a") as conf:
        conf.write("Include nodes.conf\n")
    before = texts(root)
    init(root)
    after = texts(root)
    assert {name: text for name, text in after.items() if name in before} == before | {
        "etc/slurm/slurm.conf": after["etc/slurm/slurm.conf"]
    }
    assert (root / "etc/slurm/meshd-nodes.conf").readlink() == Path("/var/lib/meshd-slurm/nodes.conf")
    assert plan_of(root).empty


def test_links_of_an_older_meshd_are_taken_over(root: Path) -> None:
    init(root)
    old = root / "var/lib/meshd/slurm"
    old.parent.mkdir()
    (root / "var/lib/meshd-slurm").rename(old)
    for name, target in (("nodes.conf", "nodes.conf"), ("meshd-gres.conf", "gres.conf")):
        (root / "etc/slurm" / name).unlink()
        (root / "etc/slurm" / name).symlink_to(f"/var/lib/meshd/slurm/{target}")
    assert {link.path.name for link in plan_of(root).links} == {"nodes.conf", "meshd-gres.conf"}
    init(root)
    assert plan_of(root).empty
    assert (root / "var/lib/meshd-slurm/nodes.conf").read_text() == (old / "nodes.conf").read_text()


def test_copies_of_one_second_have_names_of_their_own(root: Path) -> None:
    conf = root / "etc/slurm/slurm.conf"
    kept = []
    for number in range(3):
        conf.write_text(f"{CONF}MaxJobCount={100 + number}\n")
        kept.append((conf.read_text(), init(root)[PurePosixPath("/etc/slurm/slurm.conf")]))
    assert len({copy for _, copy in kept}) == 3
    assert all(copy.read_text() == text for text, copy in kept)


def test_an_included_file_that_changed_since_the_plan_is_refused(root: Path) -> None:
    (root / "etc/slurm/site.conf").write_text("TreeWidth=4\n")
    with (root / "etc/slurm/slurm.conf").open("a") as conf:
        conf.write("Include site.conf\n")
    plan = plan_of(root)
    (root / "etc/slurm/site.conf").write_text("TreeWidth=5\n")
    before = texts(root)
    with pytest.raises(InitRefused) as caught:
        apply_init(plan, NOW, RootFs(root))
    assert caught.value.code is Refusal.CHANGED_MEANWHILE
    assert texts(root) == before


def test_one_run_at_a_time(root: Path) -> None:
    plan = plan_of(root)
    lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    try:
        with pytest.raises(InitRefused) as caught:
            apply_init(plan, NOW, RootFs(root))
    finally:
        os.close(lock)
    assert caught.value.code is Refusal.BUSY
    apply_init(plan, NOW, RootFs(root))


def test_an_immutable_file_is_refused_before_anything_is_written(root: Path) -> None:
    conf = root / "etc/slurm/slurm.conf"
    plan = plan_of(root)
    if subprocess.run(["chattr", "+i", conf], check=False, capture_output=True).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        before = texts(root)
        with pytest.raises(InitRefused) as caught:
            check_init(plan, RootFs(root))
        with pytest.raises(InitRefused):
            apply_init(plan, NOW, RootFs(root))
        assert caught.value.code is Refusal.IMMUTABLE
        assert texts(root) == before
    finally:
        subprocess.run(["chattr", "-i", conf], check=True)


RUN = """
import sys
from pathlib import Path
from tests.unit.slurm.init_of_root import init
init(Path(sys.argv[1]))
"""


def names(root: Path) -> set[str]:
    """Of all files but the copies, and but an unfinished one in the directory that root's unit writes too."""
    return {name for name in texts(root) if ".meshd-2" not in name and "/meshd-slurm/." not in name}


KILLED = """
import os, shutil, sys
from pathlib import Path
from tests.unit.slurm.init_of_root import init

def hook(event, args):
    global left
    if event in ("os.rename", "os.link", "os.symlink"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)

for left in range(1, 100):
    image = Path(sys.argv[2] + str(left))
    shutil.copytree(sys.argv[1], image, symlinks=True)
    if (child := os.fork()) == 0:
        sys.addaudithook(hook)
        init(image)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code)
    if code != -9:
        break
"""
"""Kills a run at its first change of a name, the next one at its second, and so on. It forks, and with it a process
that has one thread: to start an interpreter for each of them takes longer than all the rest."""


def test_a_run_that_is_killed_anywhere_leaves_old_or_new_and_the_next_one_ends_it(root: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(root, whole, symlinks=True)
    init(whole)
    new = (whole / "etc/slurm/slurm.conf").read_text()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(root), str(tmp_path / "step")],
        check=True, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    codes = [int(word) for word in done.stdout.split()]
    assert len(codes) > 6
    assert codes == [-signal.SIGKILL] * (len(codes) - 1) + [0], "each was killed but the last, which came to its end"
    for step in range(1, len(codes) + 1):
        image = tmp_path / f"step{step}"
        text = (image / "etc/slurm/slurm.conf").read_text()
        assert text in (CONF, new)
        if text == new:
            assert (image / "etc/slurm/nodes.conf").is_symlink()
            assert RootFs(image).kind(PurePosixPath("/etc/slurm/nodes.conf")) is Kind.FILE
        init(image)
        assert names(image) == names(whole)
        assert plan_of(image).empty


@pytest.mark.parametrize(
    ("mounts", "code"),
    [
        ("mount --bind $1/etc $1/etc && mount -o remount,bind,ro $1/etc", "read_only"),
        ("mount -t tmpfs -o size=64k none $1/var", "no_space"),
    ],
)
def test_a_file_system_that_takes_nothing(root: Path, mounts: str, code: str) -> None:
    if not shutil.which("unshare"):
        pytest.skip("needs namespaces")
    if code == "no_space":  # the directory of the files is full before slurm.conf's turn
        mounts = (
            "mkdir $1/d && mount -t tmpfs -o size=32k none $1/d && cp $1/etc/slurm/slurm.conf $1/d && "
            "rm -r $1/etc/slurm && ln -s /d $1/etc/slurm; head -c 28k /dev/zero >$1/d/full"
        )
    argv = [
        "unshare",
        "-m",
        "sh",
        "-c",
        f'{mounts}; "$2" -c "$3" "$1"; echo $? >&2; cat $1/etc/slurm/slurm.conf $1/d/slurm.conf; ls -A $1/d',
    ]
    argv += ["sh", str(root), sys.executable, RUN]
    done = subprocess.run(argv, check=False, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert "Include nodes.conf" not in done.stdout
    assert CONF in done.stdout
    if code == "read_only":
        assert "InitRefused" in done.stderr
    else:
        assert "No space left" in done.stderr
        assert done.stdout.split(CONF)[-1].split() == ["full", "slurm.conf"], "nothing is left behind"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("bad addr)\nFoo=1", Refusal.BAD_ADDRESS),
        ("100.64.0.1 ", Refusal.BAD_ADDRESS),
        ("", Refusal.BAD_ADDRESS),
        ("head", Refusal.BAD_ADDRESS),
        ("fd7a::1", Refusal.BAD_ADDRESS),
        ("0.0.0.0", Refusal.BAD_ADDRESS),
        ("127.0.0.1", Refusal.BAD_ADDRESS),
        ("239.192.0.1", Refusal.BAD_ADDRESS),
        (None, Refusal.ADDRESS_NEEDED),
    ],
)
def test_an_address_that_cannot_be_the_heads_is_refused(root: Path, given: str | None, code: Refusal) -> None:
    with pytest.raises(InitRefused) as caught:
        init_input.head_address(settings(), given, RootFs(root))
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("conf", "user"),
    [
        (CONF, "slurm"),
        (CONF.replace("=slurm", "=4711"), "slurm"),
        (CONF.replace("SlurmUser=slurm\n", ""), "root"),
        (None, "slurm"),
    ],
)
def test_the_user_goes_by_slurms_own_rule(root: Path, conf: str | None, user: str) -> None:
    path = root / "etc/slurm/slurm.conf"
    path.write_text(conf) if conf else path.unlink()
    assert init_input.read_input(settings(), ADDRESS, RootFs(root)).slurm_user == user


def test_a_user_that_is_not_there_is_refused(root: Path) -> None:
    (root / "etc/slurm/slurm.conf").write_text(CONF.replace("=slurm", "=nobody-here"))
    with pytest.raises(InitRefused) as caught:
        plan_of(root)
    assert caught.value.code is Refusal.NO_USER


def test_host_name_and_version_come_from_the_image(root: Path) -> None:
    (root / "var/lib/dpkg").mkdir(parents=True)
    (root / "var/lib/dpkg/status").write_text("Package: slurmctld\nStatus: ok\nVersion: 22.05.8-4+deb12u2\n\n")
    have = init_input.read_input(settings(), ADDRESS, RootFs(root))
    assert (have.head, str(have.version), have.running) == ("head", "22.05.8", {})


def test_a_new_file_needs_the_heads_name(root: Path) -> None:
    (root / "etc/slurm/slurm.conf").unlink()
    (root / "etc/hostname").unlink()
    with pytest.raises(InitRefused) as caught:
        plan_of(root)
    assert caught.value.code is Refusal.HEAD_NAME_NEEDED
