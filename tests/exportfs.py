"""A program that keeps a list of exports in force as exportfs(8) does, for hosts without an NFS server."""

from __future__ import annotations

from pathlib import Path

_EXPORTFS = r"""
import pathlib, re, sys
here = pathlib.Path(__file__).parent
with (here / "calls").open("a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\n")
etab = here / "etab"
lines = etab.read_text().splitlines() if etab.exists() else []
if sys.argv[1] == "-a":
    for file in sorted(here.glob("exports.d/*.exports")):
        for path, client, options in re.findall(r'^"?(/[^"\s]*)"?\s+(\S+?)\((.*)\)$', file.read_text(), re.M):
            if (here / "fails").exists() and client in (here / "fails").read_text():
                sys.stderr.write("exportfs: %s does not support NFS export\n" % path)
                continue
            lines = [line for line in lines if not line.startswith("%s\t%s(" % (path, client))]
            lines.append("%s\t%s(%s,wdelay)" % (path, client, options))
elif sys.argv[1] == "-u":
    for word in sys.argv[2:]:
        client, _, path = word.partition(":")
        lines = [line for line in lines if not line.startswith("%s\t%s(" % (path, client))]
etab.write_text("".join(line + "\n" for line in lines))
"""


class Exportfs:
    """The program with its files.

    Args:
        directory: where they are made.

    Attributes:
        program: its path.
        file: meshd's own exports.
        etab: what is in force.
        fails: addresses in this file cannot be exported to.
    """

    def __init__(self, directory: Path) -> None:
        self.program = directory / "exportfs"
        self.program.write_text(f"#!/usr/bin/env python3\n{_EXPORTFS}")
        self.program.chmod(0o755)
        self.file, self.etab = directory / "exports.d/meshd.exports", directory / "etab"
        self.fails, self._calls = directory / "fails", directory / "calls"
        self.file.parent.mkdir()

    def in_force(self) -> set[str]:
        """The lines, without what the program adds."""
        return set(self.etab.read_text().replace(",wdelay", "").splitlines()) if self.etab.exists() else set()

    def calls(self) -> list[str]:
        """What it was called with since the last time."""
        text = self._calls.read_text() if self._calls.exists() else ""
        self._calls.write_text("")
        return text.splitlines()
