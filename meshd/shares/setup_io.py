"""I/O: reads what `meshd.shares.setup` plans from, carries the plan out, and takes it back.

`python -m meshd.shares.setup_io --remove` is what `deploy/head/install --uninstall` runs. It uses only the standard
library, because it runs as root.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from meshd.plan.shares import Share, in_force, read_exports
from meshd.runtime.request import write_whole
from meshd.runtime.root_path import others_decide
from meshd.shares.headexports import ETAB, EXPORTFS, EXPORTS
from meshd.shares.setup import DATA_MODE, DROP_IN, EXPORTS_D, NFS_CONF, UNITS_DIR, UNNEEDED, HeadState, SetUp, masked_in

SERVER = "nfs-server.service"
PATH_UNIT = "meshd-exports.path"
COMMAND_S = 120.0
RESTART_S = 400.0
"""It waits for the tailnet's address."""

Say = Callable[[str], None]


class SetUpFailed(Exception):
    """A command failed; the text says which, and what it said."""


def read(settings: Path, shares: tuple[Share, ...], address: str) -> HeadState:
    """What is there on this machine.

    Raises:
        OSError: a file cannot be read.
    """
    wanted = [share.at_server for share in shares if not share.server] or ["/home", "/srv/data"]
    return HeadState(
        settings=settings.read_text("utf-8"),
        shares=shares,
        address=address,
        has_server=Path(EXPORTFS).exists(),
        files={path: Path(path).read_text("utf-8") for path in (NFS_CONF, DROP_IN) if Path(path).exists()},
        masked=frozenset(unit for unit in UNNEEDED if _masked(unit)),
        others=tuple(_others()),
        old_mounts=any(re.search(r" nfs .*vers=[23]", line) for line in Path("/proc/mounts").read_text().splitlines()),
        missing=tuple(path for path in wanted if not Path(path).is_dir()),
        on_root=tuple(path for path in wanted if _there(path).stat().st_dev == Path("/").stat().st_dev),
        setuid=tuple(path for path in wanted if not os.statvfs(_there(path)).f_flag & os.ST_NOSUID),
        firewalls=tuple(_firewalls()),
        running=_active(SERVER),
    )


def apply(plan: SetUp, say: Say, now: datetime | None = None) -> dict[str, str]:
    """Carry it out; returns the copy of each file that was changed, by the file's path.

    Raises:
        OSError: a file cannot be written.
        SetUpFailed: a command failed. A second run goes on.
    """
    copies: dict[str, str] = {}
    for change in plan.files:
        path = Path(change.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        mode, owner = 0o644, None
        if change.old is not None:
            found = path.stat()
            mode, owner = found.st_mode & 0o7777, (found.st_uid, found.st_gid)
            copy = path.with_name(f"{path.name}.meshd-{now or datetime.now(UTC):%Y%m%dT%H%M%SZ}")
            shutil.copy2(path, copy)
            copies[change.path] = str(copy)
        write_whole(path.resolve(), change.new.encode(), mode, owner)
    for directory in plan.directories:
        make_for_all(Path(directory))
        say(f"made {directory}")
    Path(EXPORTS_D).mkdir(exist_ok=True)
    if plan.mask:
        _systemctl("mask", "--now", *plan.mask)
        say(f"stopped and masked {', '.join(plan.mask)}")
    if plan.files or plan.mask:
        _systemctl("daemon-reload")
    if plan.restart or plan.start:
        _systemctl("enable", SERVER)
        _systemctl("restart", SERVER, timeout_s=RESTART_S)
        say(f"{SERVER} runs")
    if Path(UNITS_DIR, PATH_UNIT).exists():
        _systemctl("enable", "--now", PATH_UNIT)
    return copies


def make_for_all(directory: Path) -> None:
    """Make a directory for everybody.

    Raises:
        SetUpFailed: others than root decide what the path leads to.
    """
    if place := others_decide(directory):
        raise SetUpFailed(f"{directory} is not made: others than root may exchange {place}")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        directory.mkdir(DATA_MODE)
        directory.chmod(DATA_MODE)  # by any umask; what was there already stays


def remove(say: Say) -> None:
    """Take back what `apply` did to the server; shared directories and meshd.toml stay.

    Raises:
        OSError: a file cannot be removed.
        SetUpFailed: a command failed.
    """
    drop_in, conf = Path(DROP_IN), Path(NFS_CONF)
    if not drop_in.exists() and not conf.exists():
        return
    masked = masked_in(drop_in.read_text("utf-8")) if drop_in.exists() else ()
    conf.unlink(missing_ok=True)
    drop_in.unlink(missing_ok=True)
    with suppress(OSError):
        drop_in.parent.rmdir()
    _systemctl("daemon-reload")
    if masked:
        _systemctl("unmask", *masked)
        say(f"unmasked {', '.join(masked)}")
    if any(_others()):
        _systemctl("restart", SERVER, timeout_s=RESTART_S)
        return
    # With its own settings again, it would listen everywhere, and it has nothing left to serve.
    _systemctl("disable", "--now", SERVER)
    say(f"stopped and disabled {SERVER}, which exports nothing any more")


def _others() -> Iterator[str]:
    """The exports that are not meshd's: in files, or in force."""
    ours = read_exports(EXPORTS.read_text("ascii", "replace")) if EXPORTS.exists() else ()
    files = [Path("/etc/exports"), *sorted(Path(EXPORTS_D).glob("*.exports"))]
    for file in files:
        if file == EXPORTS or not file.is_file():
            continue
        for line in file.read_text("utf-8", "replace").splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                yield f"{file}: {line.strip()[:80]}"
                break
    there = in_force(ETAB.read_text("utf-8", "replace")) if ETAB.exists() else frozenset()
    for path, client in sorted(there - {(one.path, one.address) for one in ours}):
        yield f"{client}:{path}"


def _there(path: str) -> Path:
    """The directory, or the nearest above that is there."""
    return next(one for one in (Path(path), *Path(path).parents) if one.exists())


def _masked(unit: str) -> bool:
    link = Path(UNITS_DIR, unit)
    return link.is_symlink() and str(link.readlink()) == "/dev/null"


def _firewalls() -> Iterator[str]:
    with suppress(OSError):
        if re.search(r"^ENABLED=yes", Path("/etc/ufw/ufw.conf").read_text(), re.M | re.I):
            yield "ufw"
    for name in ("firewalld", "nftables"):
        if _active(f"{name}.service"):
            yield name


def _active(unit: str) -> bool:
    return _run(["systemctl", "is-active", "-q", unit], 20.0).returncode == 0


def _systemctl(*words: str, timeout_s: float = COMMAND_S) -> None:
    done = _run(["systemctl", *words], timeout_s)
    if done.returncode != 0:
        raise SetUpFailed(f"systemctl {' '.join(words)}: {done.stderr.strip()[-400:] or done.returncode}")


def _run(words: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetUpFailed(f"{' '.join(words)}: {error}") from None


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> int:
    """The command line; the exit code: 0 done, 1 not possible."""
    parser = argparse.ArgumentParser(description="Takes back what `meshctl init --share` did to the NFS server.")
    parser.add_argument("--remove", action="store_true", required=True)
    parser.parse_args()
    try:
        remove(_tell)
    except (SetUpFailed, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
