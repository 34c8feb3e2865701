"""The attacker is SlurmUser, meshd's own user on the head: nothing that it writes makes root do something else.

Root's programs run here as root; the attacker's as another user, in directories that are laid out as on a head.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import pytest

from meshd.errors import SlurmError
from meshd.munge import headkey
from meshd.runtime.request import RequestRefused
from meshd.runtime.rootfs import RootFs
from meshd.shares import headexports
from meshd.slurm import headfiles
from meshd.slurm.conf import parse
from meshd.slurm.init.apply import apply_init
from meshd.slurm.init.plan import plan_init
from meshd.slurm.init.types import InitInput
from meshd.slurm.nodes import PoolLine, render
from meshd.tailnet import headhosts
from tests.exportfs import Exportfs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be root and somebody else")

SLURM_UID = 64030
POOL = PoolLine("h100", "", 4, "h100", 1, 8, 1024)
GOOD = render([POOL], [], shapes_fixed=False)
SECRET = "root:$6$secret:1::::::\n"


@dataclass
class Head:
    """The file system of a head below a directory."""

    root: Path

    def __post_init__(self) -> None:
        for name, mode in (("run/meshd-slurm", 0o755), ("var/lib/meshd-slurm", 0o755), ("etc/slurm", 0o755),
                           ("etc/meshd", 0o755), ("root", 0o700)):  # fmt: skip
            (self.root / name).mkdir(parents=True, mode=mode)
            (self.root / name).chmod(mode)
        for name in ("run/meshd", "var/lib/meshd"):
            (self.root / name).mkdir(parents=True)
            os.chown(self.root / name, SLURM_UID, SLURM_UID)
        self.secret.write_text(SECRET)
        self.secret.chmod(0o600)
        self.hosts.write_text("127.0.0.1 localhost\n")
        (self.root / "etc/meshd/meshd.toml").write_text("[pools.h100]\nmax_nodes = 4\n")
        headfiles.put(self.files, GOOD.nodes_conf, GOOD.gres_conf)

    @property
    def run(self) -> Path:
        return self.root / "run/meshd"

    @property
    def state(self) -> Path:
        return self.root / "var/lib/meshd"

    @property
    def files(self) -> Path:
        return self.root / "var/lib/meshd-slurm"

    @property
    def secret(self) -> Path:
        return self.root / "root/shadow"

    @property
    def hosts(self) -> Path:
        return self.root / "etc/hosts"

    @property
    def answer(self) -> Path:
        return self.root / "run/meshd-slurm/answer.json"

    def attack(self, script: str, *argv: str) -> str:
        """Run Python as SlurmUser, in a child; returns the exception that ended it, "" for none."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            told = ""
            try:
                os.setgroups([])
                os.setresgid(SLURM_UID, SLURM_UID, SLURM_UID)
                os.setresuid(SLURM_UID, SLURM_UID, SLURM_UID)
                os.chdir("/")
                exec(script, {"os": os, "socket": socket, "argv": ["", *argv]})
            except BaseException as error:
                told = repr(error)
            os.write(writer, told.encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            told = pipe.read()
        os.waitpid(child, 0)
        return told

    def lay(self, name: str, body: object) -> None:
        """A request of the attacker's."""
        told = self.attack(
            "fd = os.open(argv[1], os.O_WRONLY | os.O_CREAT, 0o600); os.write(fd, argv[2].encode())",
            str(self.run / name), body if isinstance(body, str) else json.dumps(body),
        )  # fmt: skip
        assert told == ""

    def serve(self) -> bool:
        """What root's unit does."""
        settings = self.root / "etc/meshd/meshd.toml"
        return headfiles.serve(self.run / headfiles.REQUEST, self.answer, self.files, settings)

    def unharmed(self) -> bool:
        """Root's files are as they were."""
        nodes, gres = ((self.files / name).read_text() for name in ("nodes.conf", "gres.conf"))
        return (nodes, gres) == (GOOD.nodes_conf, GOOD.gres_conf) and self.secret.read_text() == SECRET


@pytest.fixture
def head(tmp_path: Path) -> Head:
    # pytest's own directories are closed to others.
    for directory in (tmp_path, *tmp_path.parents):
        if not directory.stat().st_mode & 0o001:
            directory.chmod(directory.stat().st_mode | 0o011)
    return Head(tmp_path / "head")


def test_the_files_cannot_be_written_by_the_attacker(head: Head) -> None:
    for name in ("nodes.conf", "gres.conf", "other"):
        told = head.attack("open(argv[1], 'w')", str(head.files / name))
        assert "PermissionError" in told
    told = head.attack("os.rename(argv[1], argv[1] + '.x')", str(head.files / "nodes.conf"))
    assert "PermissionError" in told
    assert "PermissionError" in head.attack("open(argv[1], 'w')", str(head.answer))
    assert head.unharmed()


@pytest.mark.parametrize(
    "nodes",
    [
        "PluginDir=/tmp/evil\n",
        GOOD.nodes_conf + "PluginDir=/tmp/evil\n",
        GOOD.nodes_conf + "Include /var/lib/meshd/evil.conf\n",
        GOOD.nodes_conf.replace("\n", "\\\nPluginDir=/tmp/evil ", 1),
        GOOD.nodes_conf.replace("State=DOWN", "State=DOWN PluginDir=/tmp/evil", 1),
        GOOD.nodes_conf.replace("h100", "login"),
        GOOD.nodes_conf.replace("[1-4]", "[1-5]"),
    ],
)
def test_no_line_of_the_attacker_s_gets_into_them(head: Head, nodes: str) -> None:
    head.lay(headfiles.REQUEST, {"id": "1", "nodes": nodes, "gres": ""})
    assert not head.serve()
    assert head.unharmed()


def test_a_link_at_the_request_s_place_shows_and_removes_nothing(head: Head) -> None:
    head.attack("os.symlink(argv[1], argv[2])", str(head.secret), str(head.run / headfiles.REQUEST))
    assert not head.serve()
    assert "secret" not in head.answer.read_text()
    assert head.unharmed()


@pytest.mark.parametrize("program", ["files", "hosts", "munge"])
@pytest.mark.parametrize("kind", ["os.mkdir(p)", "os.mkfifo(p)", "socket.socket(socket.AF_UNIX).bind(p)",
                                  "os.makedirs(p + '/a/b')", "os.symlink('/dev/zero', p)"])  # fmt: skip
def test_what_is_no_file_does_not_keep_the_unit_busy(head: Head, program: str, kind: str) -> None:
    name = {"files": headfiles.REQUEST, "hosts": headhosts.REQUEST, "munge": headkey.REQUEST}[program]
    path = head.run / name
    # A socket's path may have 107 characters.
    told = head.attack(f"os.chdir(argv[1]); p = argv[2]; {kind}", str(head.run), name)
    assert told == ""
    if program == "files":
        assert not head.serve()
    elif program == "hosts":
        with pytest.raises(RequestRefused):
            headhosts.serve(path, head.hosts)
    else:
        munge = headkey.Munge(key=head.root / "root/munge.key")
        assert not headkey.serve(path, head.root / "run/meshd-slurm/munge.json", munge)
    assert not os.path.lexists(path), "or the path unit would start its service for ever"
    assert head.unharmed()


def test_the_attacker_cannot_rename_the_head_s_neighbours(head: Head) -> None:
    settings = head.root / "etc/meshd/meshd.toml"
    for name in ("ldap", "localhost", "head", "ldap-1"):
        head.lay(headhosts.REQUEST, {"names": {name: "100.64.0.66"}})
        with pytest.raises(RequestRefused):
            headhosts.serve(head.run / headhosts.REQUEST, head.hosts, settings, head.files / "nodes.conf")
    head.lay(headhosts.REQUEST, {"names": {"h100-4": "100.64.0.66"}})
    assert headhosts.serve(head.run / headhosts.REQUEST, head.hosts, settings, head.files / "nodes.conf")


def test_the_attacker_cannot_export_what_is_no_share(head: Head, tmp_path: Path) -> None:
    nfs = Exportfs(tmp_path)
    exporter = headexports.Exporter(nfs.file, nfs.etab, str(nfs.program))
    settings = head.root / "etc/meshd/meshd.toml"
    settings.write_text('[share.home]\npath = "/home"\n')
    for body in ({"addresses": ["*"]}, {"addresses": ["8.8.8.8"]}, {"addresses": ["100.64.0.2(rw)\n/ *"]}):
        head.lay(headexports.REQUEST, body)
        with pytest.raises(RequestRefused):
            headexports.serve(head.run / headexports.REQUEST, exporter, settings)
    assert not nfs.in_force()
    head.lay(headexports.REQUEST, {"addresses": ["100.64.0.2"], "paths": ["/etc"], "shares": {"a": {"path": "/etc"}}})
    assert headexports.serve(head.run / headexports.REQUEST, exporter, settings)
    assert {line.partition("(")[0] for line in nfs.in_force()} == {"/home\t100.64.0.2"}
    head.lay(headexports.REQUEST, {"addresses": ["100.64.0.2"]})
    assert "PermissionError" in head.attack("open(argv[1], 'w')", str(settings))


def _init(head: Head) -> None:
    have = InitInput("lab", "head", "100.64.0.1", None, pools=[POOL], conf_dir=PurePosixPath("/etc/slurm"))
    apply_init(plan_init(have), datetime(2026, 1, 1, tzinfo=UTC), RootFs(head.root))


def test_init_changes_nothing_that_the_attacker_points_at(head: Head) -> None:
    """`sudo meshctl init` reads an older meshd's directory, which is the attacker's."""
    for name in ("nodes.conf", "gres.conf"):
        (head.files / name).unlink()
    victim = head.root / "root"
    head.attack("os.symlink(argv[1], argv[2])", str(victim), str(head.state / "slurm"))
    _init(head)
    found = victim.stat()
    assert (found.st_uid, found.st_mode & 0o777, sorted(p.name for p in victim.iterdir())) == (0, 0o700, ["shadow"])
    assert (head.files / "nodes.conf").read_text() == GOOD.nodes_conf
    assert (head.files / "nodes.conf").stat().st_uid == 0


@pytest.mark.parametrize("kind", ["link", "hostile"])
def test_init_takes_over_nothing_that_is_not_meshd_s(head: Head, kind: str) -> None:
    (head.files / "nodes.conf").unlink()
    script = "os.mkdir(argv[1]); p = argv[1] + '/nodes.conf'\n" + (
        f"os.symlink({str(head.secret)!r}, p)" if kind == "link" else "open(p, 'w').write('PluginDir=/tmp/evil\\n')"
    )
    assert head.attack(script, str(head.state / "slurm")) == ""
    with pytest.raises((SlurmError, OSError)):
        _init(head)
    assert not (head.files / "nodes.conf").exists()
    assert head.secret.stat().st_mode & 0o777 == 0o600


def test_a_new_slurm_conf_has_root_s_slurmd_work_in_a_directory_of_root_s(head: Head) -> None:
    """slurmd runs as root: in a directory below the attacker's it could be led elsewhere."""
    _init(head)
    conf = parse((head.root / "etc/slurm/slurm.conf").read_text())
    spool, state = (PurePosixPath(conf.get(key) or "") for key in ("SlurmdSpoolDir", "StateSaveLocation"))
    assert state.parent not in spool.parents
