"""Root's side of Slurm's files: requests are looked through, files are replaced, an older meshd's taken over."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

import pytest

from meshd.daemon.slurm.root_units import RootFiles
from meshd.errors import SlurmError
from meshd.plan.slurm_lines import LineRefused
from meshd.runtime.clock import SystemClock
from meshd.runtime.request import RequestRefused, take
from meshd.slurm import headfiles
from meshd.slurm.files import SlurmFiles, Texts
from meshd.slurm.headfiles import REQUEST, adopt, put, relink, serve
from meshd.slurm.nodes import PoolLine, Rendered, render

POOL = PoolLine("h100", "", 4, "h100", 1, 8, 1024)
SETTINGS = b"[pools.h100]\nmax_nodes = 4\n"


class Head:
    """The directories of a head."""

    def __init__(self, base: Path) -> None:
        self.run, self.files, self.own = base / "run", base / "files", base / "own"
        for directory in (self.run, self.files, self.own):
            directory.mkdir()
        self.answer, self.settings = base / "answer.json", base / "meshd.toml"
        self.settings.write_bytes(SETTINGS)
        self.request = self.run / REQUEST

    def lay(self, body: object, mode: int = 0o600) -> None:
        self.request.write_text(body if isinstance(body, str) else json.dumps(body))
        self.request.chmod(mode)

    def serve(self) -> bool:
        return serve(self.request, self.answer, self.files, self.settings)

    def told(self) -> dict[str, object]:
        told: dict[str, object] = json.loads(self.answer.read_text())
        return told

    @property
    def nodes(self) -> str:
        path = self.files / "nodes.conf"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


def wanted(size: int = 4) -> Rendered:
    return render([PoolLine("h100", "", size, "h100", 1, 8, 1024)], [], shapes_fixed=False)


def test_both_files_are_written(head: Head) -> None:
    made = wanted()
    head.lay({"id": "7", "nodes": made.nodes_conf, "gres": made.gres_conf})
    assert head.serve()
    assert head.told() == {"ok": True, "detail": "", "errno": 0, "id": "7"}
    assert (head.nodes, (head.files / "gres.conf").read_text()) == (made.nodes_conf, made.gres_conf)
    for name in ("nodes.conf", "gres.conf"):
        assert (head.files / name).stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in head.files.iterdir()) == ["gres.conf", "nodes.conf"]
    assert not head.request.exists()


@pytest.mark.parametrize(
    "body",
    [
        {"id": "7", "nodes": "PluginDir=/tmp/x\n", "gres": ""},
        {"id": "7", "nodes": "Include /tmp/x\n", "gres": ""},
        {"id": "7", "nodes": "", "gres": "Include /tmp/x\n"},
        {"id": "7", "nodes": wanted(5).nodes_conf, "gres": ""},
        {"id": "7", "nodes": 7, "gres": ""},
        {"id": "7", "nodes": ""},
        {"id": "7", "nodes": "\ud800", "gres": ""},
        [],
        "[" * 200_000,
        "{",
        "",
    ],
)
def test_anything_else_is_refused_whole(head: Head, body: object) -> None:
    put(head.files, wanted().nodes_conf, "# gres\n")
    head.lay(body)
    assert not head.serve()
    assert head.told()["ok"] is False and head.told()["detail"]
    assert head.nodes == wanted().nodes_conf
    assert not head.request.exists(), "or it would be served for ever"


def test_names_that_are_there_may_stay_when_the_settings_lose_them(head: Head) -> None:
    made = wanted()
    put(head.files, made.nodes_conf, made.gres_conf)
    for text in (b"", b"[pools", b"[pools.other]\n"):
        head.settings.write_bytes(text)
        head.lay({"id": "1", "nodes": made.nodes_conf, "gres": made.gres_conf})
        assert head.serve()
        more = wanted(5)
        head.lay({"id": "2", "nodes": more.nodes_conf, "gres": more.gres_conf})
        assert not head.serve()


def test_a_full_disk_leaves_the_old_files(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    put(head.files, wanted().nodes_conf, "# gres\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(head.files))

    monkeypatch.setattr(headfiles, "write_whole", full)
    with pytest.raises(OSError, match="No space left"):
        put(head.files, "", "")
    assert head.nodes == wanted().nodes_conf


def kinds(request: Path) -> list[str]:
    """All that a local user can lay there."""
    return ["directory", "full directory", "fifo", "socket", "link", "dangling link", "huge", "foreign mode"]


@pytest.mark.parametrize("kind", kinds(Path()))
def test_what_is_no_file_is_taken_away(head: Head, kind: str, tmp_path: Path) -> None:
    path = head.request
    match kind:
        case "directory":
            path.mkdir()
        case "full directory":
            (path / "a" / "b").mkdir(parents=True)
        case "fifo":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
        case "link":
            path.symlink_to("/etc/shadow")
        case "dangling link":
            path.symlink_to(tmp_path / "none")
        case "huge":
            with path.open("wb") as file:
                file.truncate(1 << 40)
            path.chmod(0o600)
        case _:
            path.write_text("{}")
            path.chmod(0o666)
    with pytest.raises(RequestRefused):
        take(path, 4096)
    assert not os.path.lexists(path)
    with pytest.raises(RequestRefused):
        take(path, 4096)


def test_the_files_of_an_older_meshd_are_taken_over(head: Head, tmp_path: Path) -> None:
    made = wanted()
    put(head.own, made.nodes_conf, made.gres_conf)
    conf_dir, files = tmp_path / "slurm", tmp_path / "new"
    conf_dir.mkdir()
    (conf_dir / "nodes.conf").symlink_to(head.own / "nodes.conf")
    (conf_dir / "meshd-gres.conf").symlink_to(head.own / "gres.conf")
    assert adopt(head.own, files)
    assert relink(conf_dir, files, head.own) == ("nodes.conf", "meshd-gres.conf")
    assert (conf_dir / "nodes.conf").readlink() == files / "nodes.conf"
    assert (conf_dir / "nodes.conf").read_text() == made.nodes_conf
    assert (conf_dir / "meshd-gres.conf").read_text() == made.gres_conf
    assert not adopt(head.own, files) and relink(conf_dir, files, head.own) == ()


def test_a_link_of_the_users_by_that_name_is_left_alone(tmp_path: Path) -> None:
    made = wanted()
    files, site = tmp_path / "new", tmp_path / "site-nodes.conf"
    files.mkdir()
    put(files, made.nodes_conf, made.gres_conf)
    site.write_text("NodeName=rack1\n")
    (tmp_path / "nodes.conf").symlink_to(site)
    assert relink(tmp_path, files, tmp_path / "former") == ()
    assert (tmp_path / "nodes.conf").readlink() == site


@pytest.mark.parametrize("kind", ["hostile", "link", "fifo"])
def test_an_older_directory_is_not_trusted(head: Head, kind: str, tmp_path: Path) -> None:
    path = head.own / "nodes.conf"
    if kind == "hostile":
        path.write_text("PluginDir=/tmp/x\n")
    elif kind == "link":
        path.symlink_to("/etc/shadow")
    else:
        os.mkfifo(path)
    files = tmp_path / "new"
    with pytest.raises((LineRefused, OSError)):
        adopt(head.own, files)
    assert list(files.iterdir()) == []


def test_a_directory_of_somebody_else_s_is_not_used(head: Head, tmp_path: Path) -> None:
    files = tmp_path / "new"
    files.symlink_to(head.own)
    with pytest.raises(OSError):
        adopt(head.own, files, ("", ""))
    if os.geteuid() == 0:
        foreign = tmp_path / "foreign"
        foreign.mkdir()
        os.chown(foreign, 65534, 65534)
        with pytest.raises(OSError):
            adopt(head.own, foreign, ("", ""))


def test_the_program(head: Head, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["headfiles", *words])
        return headfiles.main()

    conf_dir, state = tmp_path / "slurm", tmp_path / "state"
    conf_dir.mkdir()
    (state / "slurm").mkdir(parents=True)
    put(state / "slurm", wanted().nodes_conf, "# gres\n")
    (conf_dir / "nodes.conf").symlink_to(state / "slurm" / "nodes.conf")
    head.settings.write_text(f'[slurm]\nconf_dir = "{conf_dir}"\n[cluster]\nstate_dir = "{state}"\n')
    monkeypatch.setattr(headfiles, "SETTINGS", head.settings)
    monkeypatch.setattr(headfiles, "DIRECTORY", tmp_path / "new")
    assert run("--adopt") == 0
    assert (conf_dir / "nodes.conf").readlink() == tmp_path / "new" / "nodes.conf"
    for words in ((), ("--adopt", "/run/meshd")):
        with pytest.raises(SystemExit):
            run(*words)


class Unit:
    """Stands for meshd-slurm.path and .service: the real code, started when the request is there."""

    def __init__(self, head: Head) -> None:
        self.head = head

    async def run(self) -> None:
        while True:
            if self.head.request.exists():
                self.head.serve()
            await asyncio.sleep(0.001)


async def test_the_daemon_s_side_waits_for_the_answer(head: Head) -> None:
    files = SlurmFiles(head.files, head.own, RootFiles(head.run, SystemClock(), head.answer))
    unit = asyncio.create_task(Unit(head).run())
    made = wanted()
    await files.install(Texts(made.nodes_conf, made.gres_conf))
    assert files.current() == Texts(made.nodes_conf, made.gres_conf)
    assert not files.hand_edited()
    with pytest.raises(SlurmError, match="PluginDir"):
        await files.install(Texts("PluginDir=/tmp/x\n", ""))
    assert files.current().nodes == made.nodes_conf
    assert not files.hand_edited(), "what was refused is no edit of anybody's"
    (head.files / "nodes.conf").write_text("NodeName=mine\n")
    assert files.hand_edited()
    files.keep_edit()
    assert (head.own / "nodes.conf.edited").read_text() == "NodeName=mine\n"
    unit.cancel()


async def test_without_the_unit_it_is_said_what_to_start(head: Head) -> None:
    class Quick(SystemClock):
        """An hour a look."""

        t_s = 0.0

        def monotonic_s(self) -> float:
            self.t_s += 3600
            return self.t_s

    files = SlurmFiles(head.files, head.own, RootFiles(head.run, Quick(), head.answer))
    with pytest.raises(SlurmError, match=r"systemctl enable --now meshd-slurm\.path"):
        await files.install(Texts("", ""))
    assert not head.request.exists(), "what was given up is not written later"


async def test_no_space_is_told_as_such(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(head.files))

    files = SlurmFiles(head.files, head.own, RootFiles(head.run, SystemClock(), head.answer))
    monkeypatch.setattr(headfiles, "put", full)
    unit = asyncio.create_task(Unit(head).run())
    with pytest.raises(OSError, match="No space left") as caught:
        await files.install(Texts(wanted().nodes_conf, ""))
    assert (caught.value.errno, caught.value.filename) == (28, str(head.files))
    unit.cancel()
