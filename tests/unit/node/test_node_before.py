"""What was on an owned machine before, and its way back: each writer of the agent, in any order, cut off at any point.

The audit hook of Python cannot be taken off again, so each writer runs in a process of its own: `change`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from deploy.node.meshd_node import lines, undo
from deploy.node.meshd_node.before import HOST, NODE, Before
from deploy.node.meshd_node.paths import Paths
from deploy.node.meshd_node.snapshot import take

NODE_DIR = Path(__file__).resolve().parents[3] / "deploy" / "node"
PRELUDE = """
import os, sys
from pathlib import Path
sys.path.insert(0, {node!r})
sys.dont_write_bytecode = True
from meshd_node import audit, files
from meshd_node.before import Before
from meshd_node.paths import Paths
root = Path({root!r})
etc = root / "etc"
audit.watch(Before(Paths(root), {layer!r}))
"""


def change(root: Path, script: str, layer: str = NODE) -> int:
    """Run a script of the agent's machine, with all that it changes kept; its exit code."""
    text = PRELUDE.format(node=str(NODE_DIR), root=str(root), layer=layer) + textwrap.dedent(script)
    return subprocess.run([sys.executable, "-c", text], timeout=30, check=False).returncode


def back(root: Path, layer: str = NODE) -> list[str]:
    paths = Paths(root)
    before = Before(paths, layer)
    undo.judge(before, layer)
    return undo.take_back(before, layer, paths)


def manifest(root: Path) -> dict[str, object]:
    """All that is on the machine but meshd's own directory."""
    found: dict[str, object] = {}
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if Path(directory, name) != root / "var/lib/meshd-host"]
        for name in (*names, *files):
            path = Path(directory, name)
            shot = take(path)
            found[str(path.relative_to(root))] = (shot.kind, shot.mode, shot.uid, shot.gid, shot.sha256, shot.to)
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "machine"
    (root / "etc").mkdir(parents=True)
    (root / "var/lib").mkdir(parents=True)
    (root / "home").mkdir()
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.1.1 tower\n")
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nowner:x:1000:1000::/home/owner:/bin/sh\n")
    (root / "etc/secret").write_bytes(b"own key")
    (root / "etc/secret").chmod(0o400)
    (root / "etc/link").symlink_to("hosts")
    return root


WRITES = {
    "atomic": 'files.write_atomic(etc / "hosts", b"other\\n", 0o600)',
    "atomic, new": 'files.write_atomic(etc / "new/deep/file", b"x")',
    "if changed": 'files.write_if_changed(etc / "secret", b"cluster key")',
    "keeping": 'files.replace_keeping(etc / "passwd", b"root:x:0:0::/root:/bin/sh\\nu:x:7:7::/:/bin/sh\\n", 0o644)',
    "in place": '(etc / "hosts").open("r+b").write(b"9")',
    "append": '(etc / "log").open("a").write("line\\n")',
    "truncate": 'os.truncate(etc / "hosts", 3)',
    "remove": '(etc / "secret").unlink(missing_ok=True)',
    "link": '(etc / "link").unlink(missing_ok=True); (etc / "link").symlink_to("/dev/null")',
    "hard link": '(etc / "second").unlink(missing_ok=True); os.link(etc / "passwd", etc / "second")',
    "rights": '(etc / "passwd").chmod(0o600)',
    "rights, then content": '(etc / "passwd").chmod(0o640); (etc / "passwd").write_text("y")',
    "directory": '(etc / "made").mkdir(exist_ok=True); (etc / "made").chmod(0o700)',
    "renamed away": '(etc / "passwd").exists() and (etc / "passwd").replace(etc / "passwd.old")',
    "whole directory": (
        'new = root / "home/.u.new"; new.mkdir(exist_ok=True); (new / "f").write_text("x")\n'
        'if not (root / "home/u").exists(): new.rename(root / "home/u")\n'
        '(root / "home/u/later").write_text("of a job")'
    ),
}


@pytest.mark.parametrize("write", WRITES)
def test_each_way_of_writing_is_taken_back(root: Path, write: str) -> None:
    before = manifest(root)
    assert change(root, WRITES[write]) == 0
    assert manifest(root) != before
    assert back(root) == []
    assert manifest(root) == before


@pytest.mark.parametrize("seed", range(6))
def test_any_order_in_any_number_of_processes(root: Path, seed: int) -> None:
    before, dice = manifest(root), random.Random(seed)
    for _ in range(3):
        some = dice.sample(sorted(WRITES), 6)
        change(root, "\n".join(f"try:\n{textwrap.indent(WRITES[one], '    ')}\nexcept OSError: pass" for one in some))
    assert back(root) == []
    assert manifest(root) == before


def test_an_undo_that_is_cut_off_goes_on(root: Path) -> None:
    before = manifest(root)
    change(root, "\n".join(WRITES[one] for one in ("atomic", "if changed", "keeping", "link", "directory")))
    changed = Before(Paths(root)).logs[NODE].records
    for _ in changed:  # each time one record further
        paths = Paths(root)
        kept = Before(paths)
        left = [record for record in kept.logs[NODE].records if not record.undone]
        undo.take_back(kept, NODE, paths, skip=lambda path, last=left[-1].path: path != last)
    assert manifest(root) == before
    assert back(root) == []


def test_a_record_that_was_cut_in_the_middle_is_harmless(root: Path) -> None:
    before = manifest(root)
    change(root, WRITES["atomic"])
    log = Paths(root).before / "node.log"
    with log.open("ab") as file:
        file.write(b'\n{"n":"9-9","path":"/etc/ho')
    change(root, WRITES["if changed"])
    assert back(root) == []
    assert manifest(root) == before


def test_the_writer_is_killed_between_the_record_and_the_change(root: Path) -> None:
    before = manifest(root)
    change(root, 'sys.addaudithook(lambda e, a: os._exit(9) if e == "os.rename" else None)\n' + WRITES["atomic"])
    assert back(root) == []
    assert {name for name in manifest(root) if name not in before} <= {
        name for name in manifest(root) if name.startswith("etc/.hosts.")
    }


def test_what_somebody_changed_since_stays_and_is_named(root: Path) -> None:
    change(root, WRITES["if changed"] + "\n" + WRITES["directory"] + "\n" + WRITES["link"])
    (root / "etc/secret").chmod(0o600)
    (root / "etc/secret").write_bytes(b"\0somebody's own")
    (root / "etc/made/theirs").write_text("x")
    (root / "etc/link").unlink()
    (root / "etc/link").symlink_to("/somewhere")
    left = back(root)
    assert sorted(line.partition(":")[0].rpartition("/")[2] for line in left) == ["link", "made", "secret"]
    assert (root / "etc/secret").read_bytes() == b"\0somebody's own"
    assert (root / "etc/made/theirs").exists()
    assert str((root / "etc/link").readlink()) == "/somewhere"


def test_a_text_that_somebody_changed_since_loses_only_our_lines(root: Path) -> None:
    change(root, 'p = etc / "passwd"; files.replace_keeping(p, p.read_bytes() + b"u:x:7:7::/:/bin/sh\\n", 0o644)')
    passwd = root / "etc/passwd"
    passwd.write_text(passwd.read_text().replace("/home/owner:/bin/sh", "/home/owner:/bin/zsh") + "new:x:8:8::/:/b\n")
    assert back(root) == []
    assert passwd.read_text() == (
        "root:x:0:0::/root:/bin/sh\nowner:x:1000:1000::/home/owner:/bin/zsh\nnew:x:8:8::/:/b\n"
    )


def test_a_merge_that_is_cut_off_is_not_done_twice(root: Path) -> None:
    hosts = root / "etc/hosts"
    change(root, 'p = etc / "hosts"; files.write_file(p, p.read_bytes() + b"10.0.0.9 a\\n")')
    hosts.write_text(hosts.read_text() + "10.0.0.9 a\n")
    kept = Before(Paths(root))
    undo.take_back(kept, NODE, Paths(root))
    log = Paths(root).before / "node.log"
    log.write_bytes(b"".join(line for line in log.read_bytes().splitlines(True) if b"undone" not in line))
    assert back(root) == []
    assert hosts.read_text() == "127.0.0.1 localhost\n127.0.1.1 tower\n10.0.0.9 a\n"


def test_two_changes_of_ours_around_one_of_somebody_else(root: Path) -> None:
    hosts = root / "etc/hosts"
    add = 'p = etc / "hosts"; files.write_file(p, p.read_bytes() + b"{}\\n")'
    change(root, add.format("100.64.0.1 a"))
    hosts.write_text(hosts.read_text() + "10.0.0.9 printer\n")
    change(root, add.format("100.64.0.2 b"))
    assert back(root) == []
    assert hosts.read_text() == "127.0.0.1 localhost\n127.0.1.1 tower\n10.0.0.9 printer\n"


def test_layers_are_taken_back_one_after_the_other(root: Path) -> None:
    before = manifest(root)
    change(root, 'files.write_file(etc / "hosts", b"of the stay\\n")', HOST)
    middle = manifest(root)
    change(root, 'files.write_file(etc / "hosts", b"of the node\\n")', NODE)
    assert back(root, NODE) == []
    assert manifest(root) == middle
    Before(Paths(root)).forget(NODE)
    assert back(root, HOST) == []
    assert manifest(root) == before


def test_a_second_stay_begins_anew(root: Path) -> None:
    for text in ("one", "two"):
        change(root, f'files.write_file(etc / "hosts", b"{text}\\n")')
        assert back(root) == []
        Before(Paths(root)).forget(NODE)
        (root / "etc/hosts").write_text(f"the owner's, after {text}\n")
    assert (root / "etc/hosts").read_text() == "the owner's, after two\n"
    assert Before(Paths(root)).store.all() == []


def test_a_local_user_s_link_in_the_way_is_not_followed(root: Path) -> None:
    shared = root / "scratch"
    shared.mkdir()
    shared.chmod(0o1777)
    change(root, '(root / "scratch/u").mkdir(); files.write_file(root / "scratch/u/f", b"ours\\n")')
    (shared / "u/f").unlink()
    (shared / "u").rmdir()
    (shared / "u").symlink_to(root / "etc")
    os.lchown(shared / "u", 12345, 12345)
    (root / "etc/f").write_text("ours\n")
    left = back(root)
    assert any("others than root" in line for line in left)
    assert (root / "etc/f").read_text() == "ours\n"


def test_in_the_directory_of_a_user_no_link_is_followed(root: Path) -> None:
    theirs, passwd = root / "home/u", root / "etc/passwd"
    theirs.mkdir()
    (theirs / "f").write_text("theirs\n")
    was = passwd.stat()
    change(root, 'p = root / "home/u/f"; p.chmod(0o666); p.write_text("ours\\n")')
    os.chown(theirs, 12345, 12345)
    (theirs / "f").unlink()
    (theirs / "f").symlink_to(passwd)
    back(root)
    assert (passwd.stat().st_mode, passwd.stat().st_uid) == (was.st_mode, was.st_uid)
    assert passwd.read_text().startswith("root:")


MOVE_HOME = """
from meshd_node.account_homes import Homes
from meshd_node.account_merge import Move
Homes(Paths(root), {}, ()).move(Move("owner", "/home/owner", (1000, 59999), (1000, 59999)))
"""
"""The account `owner` gets another number, with its files."""


def owner_of(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_uid, found.st_gid


@pytest.fixture
def home(root: Path) -> Path:
    """The home of 1000, with files in it at any depth, links, and a file of another's."""
    if os.geteuid() != 0:
        pytest.skip("to give files away needs root")
    home = root / "home/owner"
    (home / ".config/a/b").mkdir(parents=True)
    (home / ".ssh").mkdir(mode=0o700)
    (home / ".ssh/authorized_keys").write_text("ssh-ed25519 key\n")
    (home / ".config/a/b/deep").write_text("deep\n")
    (home / ".config/a/b/plain").write_text("plain\n")
    (home / "hard").hardlink_to(home / ".config/a/b/deep")
    (home / ".config/a/passwd").symlink_to(root / "etc/passwd")
    (home / "etc").symlink_to(root / "etc")
    for directory, names, files in os.walk(home):
        for name in (".", *names, *files):
            os.chown(Path(directory, name), 1000, 1000, follow_symlinks=False)
    (home / ".config/a/of-root").write_text("root's\n")
    return home


def test_the_files_of_an_account_with_another_number_come_back_at_any_depth(root: Path, home: Path) -> None:
    was = manifest(root)
    change(root, MOVE_HOME)
    assert owner_of(home / ".config/a/b/deep") == owner_of(home / ".config/a/passwd") == (59999, 59999)
    assert owner_of(root / "etc/passwd") == (0, 0)
    assert back(root) == []
    assert manifest(root) == was


def test_files_come_back_though_their_text_and_rights_are_others_now(root: Path, home: Path) -> None:
    change(root, MOVE_HOME)
    (home / ".ssh/authorized_keys").write_text("another key\n")
    home.chmod(0o711)
    assert back(root) == []
    assert owner_of(home) == owner_of(home / ".ssh/authorized_keys") == (1000, 1000)
    assert (home / ".ssh/authorized_keys").read_text() == "another key\n"
    assert home.stat().st_mode & 0o777 == 0o711


def test_what_a_user_put_in_the_way_is_not_given_away(root: Path, home: Path) -> None:
    change(root, MOVE_HOME)
    plain, keys = home / ".config/a/b/plain", home / ".ssh/authorized_keys"
    plain.unlink()
    plain.hardlink_to(root / "etc/passwd")
    keys.unlink()
    keys.symlink_to(root / "etc/passwd")
    left = back(root)
    assert owner_of(root / "etc/passwd") == (0, 0)
    assert owner_of(home / "hard") == (1000, 1000)
    assert {line.partition(":")[0] for line in left} == {str(plain), str(keys)}


def test_what_an_account_made_or_renamed_under_its_other_number_comes_back(root: Path, home: Path) -> None:
    change(root, MOVE_HOME)
    new, deep = home / "new/run", home / ".config/a/b/deep"
    new.mkdir(parents=True)
    (new / "result").write_text("made under the other number\n")
    (new / "passwd").symlink_to(root / "etc/passwd")
    for path in (home / "new", new, new / "result", new / "passwd"):
        os.lchown(path, 59999, 59999)
    outside = root / "kept"
    outside.hardlink_to(deep)
    deep.unlink()  # its other name in the home stays, and one outside
    (home / ".config/a/b/plain").rename(home / "renamed")
    back(root)
    for path in (home / "new", new, new / "result", new / "passwd", home / "hard", home / "renamed", outside):
        assert owner_of(path) == (1000, 1000), path
    assert owner_of(root / "etc/passwd") == owner_of(home / ".config/a/of-root") == (0, 0)


def test_an_undo_that_was_cut_off_before_the_homes_gives_them_back(root: Path, home: Path) -> None:
    change(root, MOVE_HOME)
    (home / "new").write_text("")
    os.chown(home / "new", 59999, 59999)
    assert back(root) == back(root) == []
    os.chown(home / "new", 59999, 59999)
    back(root)
    assert owner_of(home / "new") == (1000, 1000)


@pytest.mark.parametrize("kind", ["link", "directory"])
def test_a_directory_that_is_exchanged_while_root_gives_files_back(
    root: Path, home: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(root, MOVE_HOME)
    other = root / "other/b"
    other.mkdir(parents=True)
    (other / "deep").write_text("root's\n")
    real = os.open

    def exchange(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """The user acts when root has the directory above open."""
        if path == "b" and dir_fd is not None and not (home / "aside").exists():
            (home / ".config/a").rename(home / "aside")
            if kind == "link":
                (home / ".config/a").symlink_to(root / "other")
                (home / "aside/b").rename(home / "aside/old")
                (home / "aside/b").symlink_to(other)
            else:
                (root / "other").rename(home / ".config/a")
                (home / "aside/b").rename(home / "aside/old")
                (home / ".config/a/b").rename(home / "aside/b")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", exchange)
    left = back(root)
    moved = (other if kind == "link" else home / "aside/b") / "deep"
    assert moved.read_text() == "root's\n"
    assert owner_of(moved) == (0, 0)
    assert any(line.startswith(str(home / ".config/a/b")) for line in left)
    assert owner_of(home / ".ssh/authorized_keys") == (1000, 1000)


def test_a_tree_is_removed_without_what_is_linked_into_it(root: Path) -> None:
    keep = root / "etc/keep"
    keep.mkdir()
    (keep / "file").write_text("x")
    change(root, 'new = root / "home/.n"; new.mkdir(); (new / "f").write_text("x"); new.rename(root / "home/n")')
    (root / "home/n/dir").symlink_to(keep)
    (root / "home/n/file").symlink_to(keep / "file")
    assert back(root) == []
    assert not (root / "home/n").exists()
    assert (keep / "file").read_text() == "x"


def test_what_is_mounted_in_a_tree_stays(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounts need root")
    change(root, 'new = root / "home/.n"; new.mkdir(); (new / "m").mkdir(); new.rename(root / "home/n")')
    point = root / "home/n/m"
    inside = (
        f"mount -t tmpfs tmpfs {point} && echo x >{point}/theirs && {sys.executable} -c '"
        f'import sys; sys.path.insert(0, "{NODE_DIR}")\n'
        "from pathlib import Path\nfrom meshd_node.undo import remove_tree\n"
        f'print(remove_tree(Path("{root}/home/n")))\' && cat {point}/theirs'
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", inside], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines() == ["something is mounted there: it stays", "x"]


def test_without_room_to_keep_a_file_it_is_not_changed(root: Path) -> None:
    huge = root / "etc/huge"
    with huge.open("wb") as file:
        file.truncate(1 << 45)
    script = """
        from meshd_node import snapshot
        snapshot._digest = lambda fd: "0" * 64  # of 32 TiB: it would take hours
        try:
            files.write_atomic(etc / "huge", b"x")
        except OSError as error:
            sys.exit(error.errno)
        """
    assert change(root, script) == 28
    assert huge.stat().st_size == 1 << 45


def test_a_huge_file_comes_back(root: Path) -> None:
    huge = root / "etc/huge"
    with huge.open("wb") as file:
        file.truncate(48 << 20)
        file.write(b"end")
    before = manifest(root)
    change(root, 'files.write_atomic(etc / "huge", b"x")')
    assert back(root) == []
    assert manifest(root) == before


def test_what_a_program_changes_belongs_to_the_whole_stay(root: Path) -> None:
    before = manifest(root)
    script = """
        from meshd_node import tools
        program = root / "useradd"
        with tools.around("useradd"):
            text = (etc / "passwd").read_text()
            os.system(f"echo munge:x:105:105::/:/bin/false >>{etc}/passwd; touch {etc}/.pwd.lock")
        files.replace_keeping(etc / "passwd", (etc / "passwd").read_bytes() + b"u:x:7:7::/:/bin/sh\\n", 0o644)
        with tools.around("useradd"):
            os.system(f"echo slurm:x:106:106::/:/bin/false >>{etc}/passwd")
        """
    assert change(root, script) == 0
    assert back(root, NODE) == []
    text = (root / "etc/passwd").read_text()
    assert "munge" in text
    assert "slurm" in text
    assert "u:x" not in text
    assert back(root, HOST) == []
    assert manifest(root) == before


@pytest.mark.parametrize(
    ("before", "after", "now", "wanted"),
    [
        ("a\n", "a\nb\n", "a\nb\nc\n", "a\nc\n"),
        ("a\nb\n", "a\n", "c\na\n", "c\na\nb\n"),
        ("a\nx\n", "a\ny\n", "a\ny\nz\n", "a\nx\nz\n"),
        ("", "b\n", "b\nb\n", "b\n"),
        ("a\nb\n", "b\na\n", "b\na\nc\n", "b\na\nc\n"),
        ("u:1\n", "u:2\n", "u:3\n", "u:3\n"),
        ("a\nb", "a\nb\nc\n", "a\nb\nc\nd\n", "a\nb\nd\n"),
    ],
)
def test_lines_are_taken_back(before: str, after: str, now: str, wanted: str) -> None:
    assert lines.take_back(before, after, now) == wanted


def test_meshd_s_own_directories_are_not_kept(root: Path) -> None:
    change(root, 'files.write_atomic(root / "var/lib/meshd-node/state.json", b"{}")')
    assert Before(Paths(root)).logs[NODE].records == []


def test_the_cluster_s_munge_key_is_kept_nowhere_else(root: Path) -> None:
    (root / "etc/munge").mkdir()
    (root / "etc/munge/munge.key").write_bytes(b"o" * 64)
    change(root, 'files.write_atomic(etc / "munge/munge.key", b"c" * 64, 0o400)')
    kept = [path.read_bytes() for path in Before(Paths(root)).store.all()]
    assert kept == [b"o" * 64]
