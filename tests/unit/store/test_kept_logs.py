"""The last logs of machines are bounded, readable by their owner alone, and survive what happens to files."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from meshd.store.kept_logs import KeptLog, KeptLogs

AT = datetime(2026, 11, 28, 9, tzinfo=UTC)


def test_parts_are_kept_and_replaced(tmp_path: Path) -> None:
    kept = KeptLogs(tmp_path / "state" / "logs")
    assert kept.get("lab-h100-1-k7q2mz") == {}
    kept.put("lab-h100-1-k7q2mz", AT, {"console": "boots", "slurmd": "old"})
    later = AT + timedelta(hours=1)
    kept.put("lab-h100-1-k7q2mz", later, {"slurmd": "new ü"})
    again = KeptLogs(tmp_path / "state" / "logs")
    assert again.get("lab-h100-1-k7q2mz") == {"console": KeptLog(AT, "boots"), "slurmd": KeptLog(later, "new ü")}
    (file,) = (tmp_path / "state/logs").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_machines_file_is_bounded_and_keeps_the_ends(tmp_path: Path) -> None:
    kept = KeptLogs(tmp_path, machine_max_b=10_000)
    kept.put("m", AT, {"slurmd": "\x01" * 20_000 + "the end", "agent": "short", "boot": "ü" * 9000})
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size <= 10_000
    found = kept.get("m")
    assert found["slurmd"].text.endswith("the end")
    assert found["agent"].text == "short"
    assert len(found["boot"].text) > 500


def test_the_oldest_files_go(tmp_path: Path) -> None:
    kept = KeptLogs(tmp_path, machine_max_b=4000, all_max_b=10_000)
    for number in range(6):
        kept.put(f"m{number}", AT, {"slurmd": "x" * 3000})
        os.utime(tmp_path / f"m{number}.json", (1000 + number, 1000 + number))
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["m3", "m4", "m5"]
    kept.put("m3", AT, {"slurmd": "y" * 3000})
    os.utime(tmp_path / "m4.json", (1, 1))
    kept.put("m9", AT, {"slurmd": "z" * 3000})
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["m3", "m5", "m9"]


def test_names_that_are_paths_and_damaged_files_are_nothing(tmp_path: Path) -> None:
    """A machine that meshd adopted has the name that its cloud shows."""
    kept = KeptLogs(tmp_path / "logs")
    for name in ("../evil", "/etc/evil", "a/b", "", "A", "x" * 64, "a\n"):
        kept.put(name, AT, {"slurmd": "x"})
        assert kept.get(name) == {}
    assert not (tmp_path / "logs").exists()
    for damage in (b"", b"[]", b'{"slurmd": 1}', b'{"slurmd": {"at": "x", "text": ""}}', b"\xff"):
        kept.put("m", AT, {"slurmd": "x"})
        (tmp_path / "logs/m.json").write_bytes(damage)
        assert kept.get("m") == {}
    kept.put("m", AT, {"slurmd": "again"})
    assert kept.get("m")["slurmd"].text == "again"
