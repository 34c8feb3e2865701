"""An archive of a head: what is in it, what it refuses, and a new head out of it."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from meshd.backup import archive, restore
from meshd.backup.archive import BackupRefused
from meshd.runtime import strict_tar
from meshd.runtime.aside import KEPT
from meshd.store import state_copy
from meshd.store.journal import Journal
from meshd.store.migrations import MIGRATIONS
from meshd.store.restores import Restores
from tests.unit.backup.conftest import HeadFiles, make_head
from tests.unit.worlds import NOW, Phase, machine


def made(head: HeadFiles, tmp_path: Path) -> bytes:
    out = io.BytesIO()
    work = tmp_path / "work"
    work.mkdir()
    archive.make(head.settings, "head", work, out, head.places)
    return out.getvalue()


def dump(journal: Path) -> list[str]:
    with closing(sqlite3.connect(journal)) as db:
        return list(db.iterdump())


def names_in(data: bytes) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return set(tar.getnames())


def put(data: bytes, new: HeadFiles, tmp_path: Path, *, tailnet: bool = False) -> restore.Restored:
    into = tmp_path / f"into{len(list(tmp_path.iterdir()))}"
    into.mkdir()
    manifest = archive.read(io.BytesIO(data), into, new.places)
    return restore.restore(into, manifest, new.state, tailnet=tailnet, places=new.places)


def machines_of(head: HeadFiles) -> set[str]:
    journal = Journal(head.state / "journal.db")
    names: set[str] = {one.name for one in journal.machines()}
    journal.close()
    return names


def test_what_is_in_it(head: HeadFiles, tmp_path: Path) -> None:
    (head.places.etc / "credentials/link").symlink_to("/etc/shadow")
    data = made(head, tmp_path)
    assert names_in(data) == {
        "manifest.json", "state/journal.db", "state/machines.key", "state/munge-keys/new", "etc/meshd/meshd.toml",
        "etc/meshd/credentials/tailscale/auth_key", "munge/munge.key", "slurm/nodes.conf", "tailscale/tailscaled.state",
    }  # fmt: skip
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        manifest = json.loads(tar.extractfile("manifest.json").read())
    assert (manifest["cluster"], manifest["journal_form"]) == ("lab", len(MIGRATIONS))
    assert len(manifest["left_out"]) == 1 and "link" in manifest["left_out"][0]


def test_the_journal_is_whole_while_meshd_runs(head: HeadFiles, tmp_path: Path) -> None:
    """What is in its log alone by then is in the copy."""
    running = Journal(head.state / "journal.db")
    running.put(machine(Phase.READY, index=3), "phase", "ready", NOW)
    assert (head.state / "journal.db-wal").stat().st_size > 0
    data = made(head, tmp_path)
    wanted = {one.name for one in running.machines()}
    running.close()
    new = make_head(tmp_path / "new", machines=0)
    put(data, new, tmp_path)
    assert machines_of(new) == wanted


def test_a_new_head_and_what_it_had_before(head: HeadFiles, tmp_path: Path) -> None:
    data = made(head, tmp_path)
    new = make_head(tmp_path / "new", machines=0)
    (new.places.munge / "munge.key").write_bytes(b"o" * 128)
    (new.places.tailscale / "tailscaled.state").write_text('{"new": 1}')
    (new.state / "machines.key").write_bytes(b"o" * 32)
    done = put(data, new, tmp_path)
    assert done.munge_key
    assert machines_of(new) == machines_of(head)
    assert (new.state / "machines.key").read_bytes() == b"k" * 32
    assert (new.places.etc / "credentials/tailscale/auth_key").stat().st_mode & 0o777 == 0o600
    assert (new.places.tailscale / "tailscaled.state").read_text() == '{"new": 1}', "only with --tailnet"
    state_aside, root_aside = map(Path, done.aside)
    assert (state_aside / "machines.key").read_bytes() == b"o" * 32 and (state_aside / "journal.db").exists()
    assert (root_aside / "munge/munge.key").read_bytes() == b"o" * 128
    assert state_aside.stat().st_mode & 0o077 == 0 and root_aside.parent.stat().st_mode & 0o022 == 0
    put(data, new, tmp_path, tailnet=True)
    assert (new.places.tailscale / "tailscaled.state").read_text() == "{}"


def test_a_running_meshd_keeps_its_state(head: HeadFiles, tmp_path: Path) -> None:
    data = made(head, tmp_path)
    new = make_head(tmp_path / "new", machines=0)
    (new.places.munge / "munge.key").write_bytes(b"o" * 128)
    running = Journal(new.state / "journal.db")
    with pytest.raises(BackupRefused, match="another meshd runs"):
        put(data, new, tmp_path)
    running.close()
    assert (new.places.munge / "munge.key").read_bytes() == b"o" * 128
    assert machines_of(new) == set()


def test_a_newer_journal_is_refused_and_nothing_changes(head: HeadFiles, tmp_path: Path) -> None:
    db = sqlite3.connect(head.state / "journal.db")
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    data = made(head, tmp_path)
    new = make_head(tmp_path / "new", machines=1)
    (new.state / "machines.key").write_bytes(b"o" * 32)
    with pytest.raises(BackupRefused, match=f"form {len(MIGRATIONS) + 1}"):
        put(data, new, tmp_path)
    assert (new.state / "machines.key").read_bytes() == b"o" * 32
    assert len(machines_of(new)) == 1
    assert not list(new.state.glob("before-restore-*"))


def test_a_copy_of_the_journal_alone(head: HeadFiles, tmp_path: Path) -> None:
    new = make_head(tmp_path / "new", machines=0)
    with restore.opened(head.state / "journal.db") as source:
        assert restore.is_journal(source)
        done = restore.restore_journal(source, new.state)
    assert machines_of(new) == machines_of(head)
    assert len(done.aside) == 1


def test_what_is_put_back_is_marked_as_older_than_the_world(head: HeadFiles, tmp_path: Path) -> None:
    new = make_head(tmp_path / "new", machines=0)
    journal = Journal(new.state / "journal.db")
    assert Restores(journal, NOW).current is None
    journal.close()
    put(made(head, tmp_path), new, tmp_path)
    for _ in range(2):  # the mark is taken once, and what it says survives a restart
        journal = Journal(new.state / "journal.db")
        restore_ = Restores(journal, NOW + timedelta(days=36500)).current
        assert restore_ is not None and abs(restore_.at - datetime.now(UTC)) < timedelta(minutes=1)
        assert len([one for one in journal.events() if "older journal was restored" in one.text]) == 1
        journal.close()
    older = older_copy(head, tmp_path)
    restore.restore_journal(older.open("rb"), head.state)
    with closing(sqlite3.connect(head.state / "journal.db")) as db:  # of another form
        assert db.execute("PRAGMA application_id").fetchone() != (0,)


def older_copy(head: HeadFiles, tmp_path: Path) -> Path:
    """The head's journal as a meshd left it whose form was one less."""
    path = tmp_path / f"journal.db.form-{len(MIGRATIONS) - 1}"
    with closing(sqlite3.connect(head.state / "journal.db")) as db:
        db.execute("VACUUM INTO ?", (str(path),))
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) - 1}")
    return path


def test_the_way_back_is_closed_while_machines_have_come_since(head: HeadFiles, tmp_path: Path) -> None:
    copy = older_copy(head, tmp_path)
    running = Journal(head.state / "journal.db")
    came, gone = machine(Phase.READY, index=3), machine(Phase.GONE, index=4)
    running.put(came, "phase", "ready", NOW)
    running.put(gone, "phase", "gone", NOW)
    with pytest.raises(BackupRefused, match=f"meshctl remove {came.name}`"):
        restore.check_journal(copy.open("rb"), head.state)  # meshd may run meanwhile
    running.close()
    before = (head.state / "journal.db").read_bytes()
    with pytest.raises(BackupRefused, match=came.name):
        restore.restore_journal(copy.open("rb"), head.state)
    assert (head.state / "journal.db").read_bytes() == before
    assert not list(head.state.glob("before-restore-*"))

    running = Journal(head.state / "journal.db")
    running.put(replace(came, phase=Phase.GONE), "phase", "gone", NOW)
    running.close()
    restore.check_journal(copy.open("rb"), head.state)
    restore.restore_journal(copy.open("rb"), head.state)
    with closing(sqlite3.connect(head.state / "journal.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) - 1,)


def test_a_damaged_journal_does_not_close_the_way_back(head: HeadFiles, tmp_path: Path) -> None:
    copy = older_copy(head, tmp_path)
    for journal in head.state.glob("journal.db*"):
        journal.unlink()
    (head.state / "journal.db").write_bytes(b"nothing of use")
    restore.restore_journal(copy.open("rb"), head.state)
    assert dump(head.state / "journal.db") == dump(copy)


def test_what_was_replaced_is_kept_a_few_times(head: HeadFiles, tmp_path: Path) -> None:
    data = made(head, tmp_path)
    new = make_head(tmp_path / "new", machines=0)
    (new.state / "before-restore-mine").mkdir()
    done = []
    for index in range(KEPT + 2):
        (new.places.munge / "munge.key").write_bytes(bytes([index]) * 128)
        done.append(put(data, new, tmp_path))
    assert [one.forgotten for one in done[:KEPT]] == [[]] * KEPT
    for earlier, later in zip(done, done[KEPT:], strict=False):
        assert later.forgotten == earlier.aside
    kept = [path for one in done[-KEPT:] for path in one.aside]
    mine = str(new.state / "before-restore-mine")
    found = [*new.state.glob("before-restore-*"), *new.places.aside.glob("before-restore-*")]
    assert sorted(map(str, found)) == sorted([*kept, mine])


def test_files_that_no_list_has(head: HeadFiles) -> None:
    assert state_copy.unlisted(head.state) == []
    for name in ("new-secret.key", "munge-keys/deep/key", "journal.db.old", "hosts.json.bak", "slurm"):
        (head.state / name).parent.mkdir(exist_ok=True)
        (head.state / name).write_text("x")
    (head.state / "logs.link").symlink_to("logs")
    expected = ["hosts.json.bak", "journal.db.old", "logs.link", "munge-keys/deep/key", "new-secret.key", "slurm"]
    assert state_copy.unlisted(head.state) == expected


def test_links_are_not_copied(head: HeadFiles, tmp_path: Path) -> None:
    secret = tmp_path / "of-root"
    secret.write_text("of root alone")
    (head.state / "ledger.json").symlink_to(secret)
    (head.state / "munge-keys/old").symlink_to(secret)
    data = made(head, tmp_path)
    assert b"of root alone" not in data
    assert not {"state/ledger.json", "state/munge-keys/old"} & names_in(data)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as the command does")
def test_root_follows_no_link_of_the_owner_of_the_state(head: HeadFiles, tmp_path: Path) -> None:
    """Its owner reads the copy of the journal, so that a link in its place leads nowhere that he may not go."""
    secret = tmp_path / "of-root"
    secret.write_text("SQLite format 3\0 of root alone")
    secret.chmod(0o600)
    os.chown(head.state, 65534, 65534)
    (head.state / "journal.db.form-1").symlink_to(secret)
    with pytest.raises(BackupRefused), restore.opened(head.state / "journal.db.form-1"):
        pass


# -- hostile archives ---------------------------------------------------------------------------------------------


def member(name: str, data: bytes = b"x", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def tar_of(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return out.getvalue()


@pytest.mark.parametrize(
    "hostile",
    [
        member("../etc/passwd"),
        member("/etc/passwd"),
        member("etc/meshd/../../passwd"),
        member("etc/meshd/.hidden"),
        member("etc/passwd"),
        member("etc/meshd/x\n"),
        member("etc/meshd/link", b"", type=tarfile.SYMTYPE, linkname="/etc/shadow"),
        member("etc/meshd/link", b"", type=tarfile.LNKTYPE, linkname="munge/munge.key"),
        member("etc/meshd/fifo", b"", type=tarfile.FIFOTYPE),
        member("etc/meshd/device", b"", type=tarfile.CHRTYPE),
        member("etc/meshd/folder", b"", type=tarfile.DIRTYPE),
    ],
    ids=lambda found: repr(found[0].name) + str(found[0].type),
)
def test_a_member_that_does_not_belong_there(hostile: tuple[tarfile.TarInfo, bytes], tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(BackupRefused):
        archive.read(io.BytesIO(tar_of(hostile)), into)
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


def test_extensions_of_tar_are_not_read(tmp_path: Path) -> None:
    """A long name of GNU's or POSIX's makes a reader believe a size that is in the header."""
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        into = tmp_path / str(form)
        into.mkdir()
        with pytest.raises(BackupRefused):
            archive.read(io.BytesIO(tar_of(member("etc/meshd/" + "x" * 200), form=form)), into)


def huge(block: int = 4) -> bytes:
    info, _ = member("state/journal.db")
    info.size = strict_tar.MEMBER_MAX_BYTES + 1
    return info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 512 * block


def doubled() -> bytes:
    return tar_of(member("munge/munge.key"), member("munge/munge.key"))


def a_file_below_a_file() -> bytes:
    return tar_of(member("etc/meshd/a"), member("etc/meshd/a/b"))


def many() -> bytes:
    return tar_of(*(member(f"state/f{index}", b"") for index in range(strict_tar.MEMBERS_MAX + 1)))


def cut() -> bytes:
    return tar_of(member("munge/munge.key", b"x" * 4000))[:1500]


def without_an_end() -> bytes:
    return tar_of(member("munge/munge.key"))[:1024]


@pytest.mark.parametrize(
    "data", [huge, doubled, a_file_below_a_file, many, cut, without_an_end, bytes, lambda: b"\0" * 1024,
             lambda: b"not a tar at all" * 64], ids=lambda found: getattr(found, "__name__", "")
)  # fmt: skip
def test_an_archive_that_is_none(data: Callable[[], bytes], tmp_path: Path) -> None:
    with pytest.raises(BackupRefused):
        archive.read(io.BytesIO(data()), tmp_path)


def changed(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The archive with another manifest."""
    members = []
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for info in tar:
            content = tar.extractfile(info).read()
            if info.name == "manifest.json":
                manifest = json.loads(content)
                change(manifest)
                content = json.dumps(manifest).encode()
            members.append(member(info.name, content))
    return tar_of(*members)


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a newer format": lambda m: m.update(format=archive.FORMAT + 1),
    "another digest": lambda m: m["files"]["munge/munge.key"].update(sha256="0" * 64),
    "a file that is missing": lambda m: m["files"].update({"etc/meshd/x": {"size": 1, "sha256": "0" * 64}}),
    "a file that it does not know": lambda m: m["files"].pop("munge/munge.key"),
    "no text": lambda m: m.update(cluster=3),
    "a mode beyond bounds": lambda m: m["files"]["munge/munge.key"].update(mode=0o4755),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_manifest_that_does_not_fit(change: str, head: HeadFiles, tmp_path: Path) -> None:
    data = made(head, tmp_path)
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(BackupRefused):
        archive.read(io.BytesIO(changed(data, CHANGES[change])), into, head.places)


def test_settings_of_another_cluster_than_the_manifest_s(head: HeadFiles, tmp_path: Path) -> None:
    data = changed(made(head, tmp_path), lambda m: m.update(cluster="other"))
    into = tmp_path / "into"
    into.mkdir()
    manifest = archive.read(io.BytesIO(data), into, head.places)
    with pytest.raises(BackupRefused, match="other"):
        archive.cluster_of(into, manifest)


@pytest.mark.parametrize("journal", [b"SQLite format 3\0" + b"x" * 5000, b"", b"no database"])
def test_a_journal_that_is_none(journal: bytes, tmp_path: Path) -> None:
    new = make_head(tmp_path / "new", machines=1)
    with pytest.raises(BackupRefused):
        restore.restore_journal(io.BytesIO(journal), new.state)
    assert len(machines_of(new)) == 1


def test_a_journal_with_a_trigger(head: HeadFiles, tmp_path: Path) -> None:
    db = sqlite3.connect(head.state / "journal.db")
    db.execute("CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM machines; END")
    db.close()
    new = make_head(tmp_path / "new", machines=1)
    with pytest.raises(BackupRefused):
        put(made(head, tmp_path), new, tmp_path)
    assert len(machines_of(new)) == 1
