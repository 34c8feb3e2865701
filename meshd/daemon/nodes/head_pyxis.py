"""How the head loads pyxis, from its plugstack.conf."""

from __future__ import annotations

from pathlib import Path

from meshd.plan.plugstack import PLUGSTACK_D, PyxisLine, pyxis_line

TEXT_MAX_B = 64 << 10
FILES_MAX = 100


class HeadPyxis:
    """Reads it at each look; what cannot be read for a moment changes nothing on the nodes.

    Args:
        conf_dir: Slurm's directory.
    """

    def __init__(self, conf_dir: Path) -> None:
        self._plugstack = conf_dir / "plugstack.conf"
        self._included = conf_dir / PLUGSTACK_D.name
        self._last = PyxisLine()

    def line(self) -> PyxisLine:
        """The line in force."""
        try:
            plugstack = _text(self._plugstack)
            files = sorted(self._included.glob("*.conf"))[:FILES_MAX]
            self._last = pyxis_line(plugstack, {PLUGSTACK_D / path.name: _text(path) for path in files})
        except FileNotFoundError:
            self._last = PyxisLine()
        except OSError:
            pass  # the nodes keep what they have
        return self._last


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(TEXT_MAX_B).decode("utf-8", "replace")
