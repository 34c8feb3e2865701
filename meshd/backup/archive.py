"""The archive: what is in it, how it is made, and how one that may be hostile is read.

A manifest comes first, with the versions, the cluster and the digest of each file. Then come the files:
`etc/meshd/...`, `munge/munge.key`, `slurm/nodes.conf` and `gres.conf`, `tailscale/tailscaled.state`, `state/...`.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from meshd import __version__
from meshd.config import Settings, load
from meshd.errors import MeshdError
from meshd.runtime.strict_tar import TarRefused, good_name, unpack, write_end, write_member

FORMAT = 1
"""Of the archive. A reader refuses a higher one."""
MANIFEST = "manifest.json"
MANIFEST_MAX_BYTES = 2 << 20
ROOT_FILE_MAX_BYTES = 16 << 20
STATE = "state"
JOURNAL = f"{STATE}/journal.db"
SETTINGS = "etc/meshd/meshd.toml"
MUNGE_KEY = "munge/munge.key"
TAILSCALED = "tailscale/tailscaled.state"
STATE_PROGRAM = "meshd.store.state_copy"
"""Runs as the owner of the state. It is named, not imported: meshctl does not contain the journal."""
PROGRAM_TIMEOUT_S = 600.0


class BackupRefused(MeshdError):
    """No backup was made, or nothing was restored.

    Attributes:
        cure: what to do.
    """

    def __init__(self, text: str, cure: str = "") -> None:
        super().__init__(text)
        self.cure = cure


@dataclass(frozen=True, slots=True)
class HeadPlaces:
    """Where a head has what is copied, by its prefix in the archive.

    Attributes:
        etc: meshd's settings and credentials.
        munge: the folder of the munge key.
        slurm: root's folder with nodes.conf and gres.conf.
        tailscale: tailscaled's folder.
        aside: where a restore keeps root's files that it replaces.
    """

    etc: Path = Path("/etc/meshd")
    munge: Path = Path("/etc/munge")
    slurm: Path = Path("/var/lib/meshd-slurm")
    tailscale: Path = Path("/var/lib/tailscale")
    aside: Path = Path("/var/backups/meshd")

    def path(self, name: str) -> Path | None:
        """Where a file of root's belongs; None for a name that is none of root's files."""
        if name.startswith("etc/meshd/"):
            return self.etc / name.removeprefix("etc/meshd/")
        known = {
            MUNGE_KEY: self.munge / "munge.key",
            "slurm/nodes.conf": self.slurm / "nodes.conf",
            "slurm/gres.conf": self.slurm / "gres.conf",
            TAILSCALED: self.tailscale / "tailscaled.state",
        }
        return known.get(name)


class FileEntry(BaseModel):
    """A file as the manifest has it. `mode` is of use for root's files alone."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    mode: int = Field(default=0o600, ge=0, le=0o777)


class Manifest(BaseModel):
    """What an archive says of itself.

    Attributes:
        format: of the archive.
        meshd: the version that made it.
        cluster: `cluster.name` of the settings.
        head: the host name.
        made_at: UTC, ISO 8601.
        journal_form: how many migrations the journal has had; 0 where there is none.
        files: all files, by name.
        left_out: files that are not in it, with the reason.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    format: int = Field(ge=1)
    meshd: str = Field(max_length=100)
    cluster: str = Field(max_length=100)
    head: str = Field(max_length=255)
    made_at: str = Field(max_length=40)
    journal_form: int = Field(ge=0, le=1_000_000)
    files: dict[str, FileEntry] = Field(max_length=4096)
    left_out: list[str] = Field(default=[], max_length=4096)


def make(settings: Path, head: str, work: Path, out: BinaryIO, places: HeadPlaces | None = None) -> Manifest:
    """Write an archive of this head.

    Args:
        settings: meshd.toml.
        head: the host name.
        work: an empty folder that nobody else can read.
        out: where it goes.
        places: of the head's files.

    Raises:
        ConfigError: the settings cannot be read.
        BackupRefused: the state cannot be copied.
        OSError: a file cannot be read or written.
    """
    places = places or HeadPlaces()
    found = load(settings)
    state = work / STATE
    state.mkdir(mode=0o700)
    if found.cluster.state_dir.is_dir():
        _export_state(found.cluster.state_dir, state, work)
    files = {f"{STATE}/{path.relative_to(state)}": path for path in sorted(state.rglob("*")) if path.is_file()}
    left_out: list[str] = []
    files |= dict(_roots_files(places, settings, left_out))
    entries = {name: _entry(path) for name, path in files.items()}
    manifest = Manifest(
        format=FORMAT, meshd=__version__, cluster=found.cluster.name, head=head,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        journal_form=journal_form(files[JOURNAL]) if JOURNAL in files else 0,
        files=entries, left_out=left_out,
    )  # fmt: skip
    text = manifest.model_dump_json(indent=1).encode()
    write_member(out, MANIFEST, io.BytesIO(text), len(text))
    for name, path in files.items():
        with path.open("rb") as file:
            write_member(out, name, file, entries[name].size)
    write_end(out)
    return manifest


def read(source: BinaryIO, into: Path, places: HeadPlaces | None = None) -> Manifest:
    """Unpack an archive into an empty folder, and check all that it says of itself.

    Raises:
        BackupRefused: it is no archive, is damaged, or was made by a newer meshd.
        OSError: it cannot be read or written.
    """
    places = places or HeadPlaces()

    def wanted(name: str) -> bool:
        return name == MANIFEST or name.startswith(f"{STATE}/") or places.path(name) is not None

    try:
        members = unpack(source, into, wanted)
    except TarRefused as error:
        raise BackupRefused(str(error), "name a file that `meshctl backup` has made") from None
    manifest = _manifest(into / MANIFEST)
    names = {member.name for member in members} - {MANIFEST}
    if names != manifest.files.keys():
        strange = sorted(names ^ manifest.files.keys())[0]
        raise BackupRefused(f"the archive and its manifest do not agree about {strange}", "take another backup")
    for name, entry in manifest.files.items():
        if _entry(into / name).sha256 != entry.sha256:
            raise BackupRefused(f"{name} in the archive is damaged: its digest is another one", "take another backup")
    return manifest


def cluster_of(unpacked: Path, manifest: Manifest) -> Settings:
    """The settings of an unpacked archive. Raises BackupRefused when they are not those of its cluster, ConfigError."""
    if SETTINGS not in manifest.files:
        raise BackupRefused("the archive has no meshd.toml", "take another backup")
    settings = load(unpacked / SETTINGS)
    if settings.cluster.name != manifest.cluster:
        raise BackupRefused(
            f"the archive says that it is of {manifest.cluster!r}, its settings are of {settings.cluster.name!r}",
            "take another backup",
        )
    return settings


def journal_form(path: Path) -> int:
    """The form of a journal's copy, as SQLite's header has it: root opens no database that another user made."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(64)[60:64], "big")


@contextmanager
def as_owner(verb: str, directory: Path, owner: tuple[int, int], **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program that reads and writes the state, as the state's owner."""
    uid, gid = owner
    other: dict[str, Any] = {} if uid == os.geteuid() else {"user": uid, "group": gid, "extra_groups": []}
    process = subprocess.Popen(_program(verb, directory), cwd="/", **other, **streams)
    with process:
        try:
            yield process
        finally:
            if sys.exc_info()[0] is not None:
                process.kill()


def _program(verb: str, path: Path) -> list[str]:
    return [sys.executable, "-I", "-m", STATE_PROGRAM, verb, str(path)]


def _export_state(directory: Path, state: Path, work: Path) -> None:
    found = directory.stat()
    with (
        (work / "errors").open("w+b") as errors,
        as_owner("export", directory, (found.st_uid, found.st_gid), stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdout is not None
        fault: Exception | None = None
        try:
            unpack(cast("BinaryIO", process.stdout), state, lambda _: True)
            process.stdout.read()
        except TarRefused as error:
            fault = error
            process.kill()
        process.wait(PROGRAM_TIMEOUT_S)
        if process.returncode != 0 or fault is not None:
            errors.seek(0)
            text = errors.read().decode("utf-8", "replace").strip() or str(fault)
            raise BackupRefused(f"the state in {directory} cannot be copied: {text}")


def _roots_files(places: HeadPlaces, settings: Path, left_out: list[str]) -> Iterator[tuple[str, Path]]:
    """Root's files by name. What cannot be taken is added to `left_out`."""
    yield SETTINGS, settings
    for path in sorted(places.etc.rglob("*")):
        name = f"etc/meshd/{path.relative_to(places.etc)}"
        if name != SETTINGS and (path.is_symlink() or not path.is_dir()):
            if reason := _unfit(name, path):
                left_out.append(f"{path}: {reason}")
            else:
                yield name, path
    for name in (MUNGE_KEY, "slurm/nodes.conf", "slurm/gres.conf", TAILSCALED):
        at = places.path(name)
        assert at is not None
        if at.exists():
            yield name, at


def _unfit(name: str, path: Path) -> str:
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        return "it is a link, or no file"
    if found.st_size > ROOT_FILE_MAX_BYTES:
        return f"it has more than {ROOT_FILE_MAX_BYTES} bytes"
    return "" if good_name(name) else "its name is too long, or has characters that an archive cannot have"


def _entry(path: Path) -> FileEntry:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return FileEntry(size=found.st_size, sha256=digest.hexdigest(), mode=stat.S_IMODE(found.st_mode) & 0o777)


def _manifest(path: Path) -> Manifest:
    try:
        if path.stat().st_size > MANIFEST_MAX_BYTES:
            raise BackupRefused("the manifest of the archive is too long", "take another backup")
        manifest = Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise BackupRefused("the archive has no manifest", "name a file that `meshctl backup` has made") from None
    except (ValidationError, RecursionError):
        raise BackupRefused("the manifest of the archive cannot be read", "take another backup") from None
    if manifest.format > FORMAT:
        raise BackupRefused(
            f"meshd {manifest.meshd} made the archive, in a form that this one does not know",
            f"install meshd {manifest.meshd} or newer, then restore",
        )
    return manifest
