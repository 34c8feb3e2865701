"""The sandbox's store of built things: whole entries only, whoever builds and whatever goes wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from deploy.sandbox import cache


async def test_an_entry_is_built_once_for_many_who_want_it(tmp_path: Path) -> None:
    built: list[Path] = []

    async def build(folder: Path) -> None:
        built.append(folder)
        await asyncio.sleep(0.02)
        (folder / "content").write_text("whole")

    entries = await asyncio.gather(*(cache.ensure("tools", "thing", "k1", build, tmp_path) for _ in range(4)))

    assert len(built) == 1
    assert {entry.name for entry in entries} == {"thing-k1"}
    assert (entries[0] / "content").read_text() == "whole"


async def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    async def build(folder: Path) -> None:
        (folder / "half").write_text("")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        await cache.ensure("tools", "thing", "k1", build, tmp_path)
    assert list((tmp_path / "tools").iterdir()) == []


async def test_a_cancelled_build_leaves_nothing(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def build(folder: Path) -> None:
        (folder / "half").write_text("")
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(cache.ensure("tools", "thing", "k1", build, tmp_path))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list((tmp_path / "tools").iterdir()) == []


async def test_what_a_killed_builder_left_is_replaced(tmp_path: Path) -> None:
    left = tmp_path / "tools" / "thing-k1.partial"
    left.mkdir(parents=True)
    (left / "half").write_text("")

    async def build(folder: Path) -> None:
        (folder / "content").write_text("whole")

    entry = await cache.ensure("tools", "thing", "k1", build, tmp_path)
    assert [path.name for path in entry.iterdir()] == ["content"]


async def test_another_recipe_is_another_entry(tmp_path: Path) -> None:
    async def build(folder: Path) -> None:
        (folder / "content").write_text("")

    first = await cache.ensure("tools", "thing", cache.recipe_key("a", "b"), build, tmp_path)
    second = await cache.ensure("tools", "thing", cache.recipe_key("ab", ""), build, tmp_path)
    assert first != second
    assert first.is_dir()


def test_the_cache_can_be_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHD_CACHE", "/somewhere")
    assert cache.cache_root() == Path("/somewhere")
    monkeypatch.setenv("MESHD_CACHE", "")
    assert cache.cache_root() == Path("/var/cache/meshd-sandbox")
