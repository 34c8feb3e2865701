"""Root's part in exporting the head's shares to the nodes: `python -m meshd.shares.headexports`.

meshd-exports.path starts it when meshd, which is not root, has written a request of mode 0600 in its runtime directory:
{"addresses": ["100.64.0.2"]}. What is exported, and how, comes from root's own settings; a request only says to which
addresses of the tailnet. The lines go into a file of meshd's own, and exportfs(8) puts them in force. It uses only the
standard library, because it runs as root.

`exportfs -r` would do in one call, but it also ends the exports of other programs that are in no file. So only meshd's
own are added and taken away.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshd.plan.shares import (
    EXPORTS_MAX,
    Export,
    Share,
    exports,
    exports_text,
    in_force,
    node_address_fault,
    read_exports,
    shares_in,
    systems,
)
from meshd.runtime.request import RequestRefused, read_small, take, write_whole
from meshd.runtime.root_path import others_decide

REQUEST = "exports.request"
EXPORTS = Path("/etc/exports.d/meshd.exports")
ETAB = Path("/var/lib/nfs/etab")
SETTINGS = Path("/etc/meshd/meshd.toml")
EXPORTFS = "/usr/sbin/exportfs"
REQUEST_MAX_B = 1 << 20
COMMAND_S = 20.0
UNEXPORT_AT_ONCE = 200
"""A command line is bounded."""


class NotExported(Exception):
    """exportfs did not do what it should; the text says what it said."""


class Exporter:
    """Writes the file, and puts it in force.

    Args:
        file: meshd's own file of exports.
        etab: what is in force.
        exportfs: the program.
    """

    def __init__(self, file: Path = EXPORTS, etab: Path = ETAB, exportfs: str = EXPORTFS) -> None:
        self._file, self._etab, self._exportfs = file, etab, exportfs

    def put(self, wanted: Sequence[Export]) -> bool:
        """Export exactly this, beside what others export; returns whether something changed.

        Raises:
            NotExported: a line is not in force, or one that should be gone is. The file is as wanted: the next call,
                and a start of the server, try again.
            OSError: the file cannot be written, or there is no exportfs.
        """
        text = exports_text(wanted) if wanted else ""
        old = self._file.read_text("ascii", "replace") if self._file.exists() else ""
        pairs = {(one.path, one.address) for one in wanted}
        gone = {(one.path, one.address) for one in read_exports(old)} - pairs
        if text != old:
            if text:
                write_whole(self._file, text.encode("ascii"), 0o644)
            else:
                self._file.unlink()
        there = self._in_force()
        # The options of a line may have changed too: then -a puts them in force.
        said = self._run("-a") if text and (text != old or pairs - there) else ""
        stale = sorted(gone & there)
        for start in range(0, len(stale), UNEXPORT_AT_ONCE):
            some = stale[start : start + UNEXPORT_AT_ONCE]
            said += self._run("-u", *(f"{address}:{path}" for path, address in some))
        there = self._in_force()
        wrong = sorted(pairs - there) + sorted(gone & there)
        if wrong:
            path, address = wrong[0]
            raise NotExported(
                f"{len(wrong)} exports are not as they should be, e.g. {address}:{path}: {said.strip()[-500:]}"
            )
        return text != old or bool(stale)

    def _in_force(self) -> frozenset[tuple[str, str]]:
        return in_force(self._etab.read_text("utf-8", "replace")) if self._etab.exists() else frozenset()

    def _run(self, *words: str) -> str:
        """Run exportfs; what it said. Its exit code says nothing of a single line: etab does."""
        try:
            done = subprocess.run(
                [self._exportfs, *words], capture_output=True, text=True, timeout=COMMAND_S, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"exportfs did not end within {COMMAND_S:g} s"
        return done.stderr


def serve(request: Path, exporter: Exporter, settings: Path = SETTINGS) -> bool:
    """Take the request and export; returns whether something changed.

    Raises:
        RequestRefused: it asks for something that is not given, or the settings have no usable shares; nothing changed.
        NotExported, OSError: see `Exporter.put`, or the request cannot be taken, or a directory is not to be exported:
            the others are.
    """
    addresses = _addresses(take(request, REQUEST_MAX_B))
    read = shares_in(read_small(settings))
    if read.fault:
        raise RequestRefused(f"{settings}: {read.fault}")
    faults = {share.at_server: fault for share in read.shares if not share.server and (fault := place_fault(share))}
    wanted = exports((share for share in read.shares if share.at_server not in faults), addresses)
    if len(wanted) > EXPORTS_MAX:
        raise RequestRefused(f"{len(wanted)} exports, and at most {EXPORTS_MAX} are possible")
    changed = exporter.put(wanted)
    if faults:
        raise NotExported("; ".join(faults.values()))
    return changed


def place_fault(share: Share) -> str:
    """Why a directory of the head's is not exported: what its path leads to; "" when it may be.

    The server follows links. Where a user may exchange a part of the path, the user would choose what nodes get.
    """
    path = Path(share.at_server)
    try:
        if place := others_decide(path):
            return (
                f"share {share.name}: others than root may exchange {place}: let only root write the directory above it"
            )
        real = path.resolve()
    except (OSError, RuntimeError) as error:
        return f"share {share.name}: {path} cannot be looked at: {error}"
    return f"share {share.name}: {path} leads to {real}: nodes could change the head by it" if systems(real) else ""


def _addresses(asked: dict[str, Any]) -> list[str]:
    addresses = asked.get("addresses")
    if not isinstance(addresses, list):
        raise RequestRefused("the request has no addresses")
    for address in addresses:
        if fault := node_address_fault(address):
            raise RequestRefused(fault)
    return addresses


def main() -> int:
    """The command line; the exit code: 0 done, 1 refused or not possible."""
    parser = argparse.ArgumentParser(description="Exports the head's shares to the nodes, as meshd asks.")
    parser.add_argument("directory", type=Path, nargs="?", help="meshd's runtime directory, where the request is")
    parser.add_argument("--remove", action="store_true", help="take meshd's exports away")
    arguments = parser.parse_args()
    if arguments.remove == (arguments.directory is not None):
        parser.error("either a directory or --remove")
    try:
        exporter = Exporter()
        changed = exporter.put(()) if arguments.remove else serve(arguments.directory / REQUEST, exporter)
    except (RequestRefused, NotExported, OSError) as error:
        sys.stderr.write(f"the exports are not as meshd asks: {error}\n")
        return 1
    if changed:
        sys.stderr.write(f"{EXPORTS}: {'removed' if arguments.remove else 'written, and in force'}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
