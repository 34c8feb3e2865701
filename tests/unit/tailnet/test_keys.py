from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import SecretStr

from meshd.errors import TailnetError
from meshd.obs import log as obs_log
from meshd.tailnet.admin import AuthKey, TailscaleAdmin
from meshd.tailnet.keys import FileKeySource, MintedKeySource


class Mint:
    """Stands for the admin API's key part."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.made = 0
        self.broken = False

    async def mint_key(self, *, tags: Sequence[str], lifetime_s: int, description: str, **_: bool) -> AuthKey:
        if self.broken:
            raise TailnetError("the API is in trouble")
        self.made += 1
        now = self.clock.now()
        return AuthKey(
            f"k{self.made}",
            description,
            now,
            now + timedelta(seconds=lifetime_s),
            True,
            True,
            False,
            True,
            tuple(tags),
            SecretStr(f"tskey-auth-{self.made}"),
        )


def source(mint: Mint, path: Path, clock: Any, tags: Sequence[str] = ("tag:gpu",)) -> MintedKeySource:
    return MintedKeySource(cast("TailscaleAdmin", mint), path, tags=tags, cluster="lab", clock=clock)


async def value(source: FileKeySource | MintedKeySource) -> str:
    return (await source.current()).get_secret_value()


async def test_a_file_counts_as_soon_as_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("tskey-auth-one\n")
    path.chmod(0o600)
    keys = FileKeySource(path)
    assert await value(keys) == "tskey-auth-one"
    path.write_text("tskey-auth-two\n")
    assert await value(keys) == "tskey-auth-two"
    assert obs_log.redact("x tskey-auth-two y") == "x ********** y"


@pytest.mark.parametrize("content", [None, "", "  \n"])
async def test_no_usable_file(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
    with pytest.raises(TailnetError, match="put a reusable"):
        await value(FileKeySource(path))


async def test_the_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(TailnetError, match="auth_key_file"):
        await value(FileKeySource(None))
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (tmp_path / "tailscale_auth_key").write_text("tskey-auth-cred")
    assert await value(FileKeySource(None)) == "tskey-auth-cred"


async def test_a_file_others_may_read_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from meshd.config import LogSettings

    obs_log.set_up(LogSettings(format="json"))
    logging.getLogger().addHandler(caplog.handler)
    path = tmp_path / "key"
    path.write_text("tskey-auth-one")
    path.chmod(0o644)
    keys = FileKeySource(path)
    await value(keys)
    await value(keys)
    assert caplog.text.count("auth_key_file_readable_by_others") == 1
    assert "tskey" not in caplog.text


async def test_a_minted_key_is_kept_over_restarts(tmp_path: Path, clock: Any) -> None:
    mint = Mint(clock)
    assert await value(source(mint, tmp_path, clock)) == "tskey-auth-1"
    assert await value(source(mint, tmp_path, clock)) == "tskey-auth-1"
    kept = tmp_path / "tailscale-auth-key.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert set(json.loads(kept.read_text())) == {"id", "key", "expires", "tags"}


async def test_a_minted_key_is_renewed_before_its_end(tmp_path: Path, clock: Any) -> None:
    mint = Mint(clock)
    keys = source(mint, tmp_path, clock)
    await keys.current()
    await clock.sleep(75 * 86400)
    assert await value(keys) == "tskey-auth-1"
    await clock.sleep(2 * 86400)
    mint.broken = True
    assert await value(keys) == "tskey-auth-1"
    mint.broken = False
    assert await value(keys) == "tskey-auth-2"


async def test_a_dead_key_is_never_given(tmp_path: Path, clock: Any) -> None:
    mint = Mint(clock)
    keys = source(mint, tmp_path, clock)
    await keys.current()
    mint.broken = True
    await clock.sleep(91 * 86400)
    with pytest.raises(TailnetError, match="in trouble"):
        await keys.current()


async def test_changed_tags_want_a_new_key(tmp_path: Path, clock: Any) -> None:
    mint = Mint(clock)
    await source(mint, tmp_path, clock).current()
    assert await value(source(mint, tmp_path, clock, ["tag:other"])) == "tskey-auth-2"
    mint.broken = True
    with pytest.raises(TailnetError):
        await source(mint, tmp_path, clock).current()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key":"x"}', '{"key":"x","expires":"soon"}'])
async def test_a_spoilt_file_is_replaced(tmp_path: Path, clock: Any, content: str) -> None:
    (tmp_path / "tailscale-auth-key.json").write_text(content)
    assert await value(source(Mint(clock), tmp_path, clock)) == "tskey-auth-1"


async def test_a_state_directory_that_cannot_be_written(tmp_path: Path, clock: Any) -> None:
    with pytest.raises(TailnetError, match="revoke it"):
        await source(Mint(clock), tmp_path / "missing", clock).current()
