"""What `meshctl init --share` does to a head: once, on the tailnet alone, and nothing to the server of others."""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from meshd.plan.shares import Share, share_faults, shares_in
from meshd.shares import setup_io
from meshd.shares.setup import (
    DROP_IN,
    NFS_CONF,
    PROPOSED,
    UNNEEDED,
    HeadState,
    SetUp,
    drop_in,
    masked_in,
    nfs_conf,
    plan,
)

TOML = "/etc/meshd/meshd.toml"
ADDRESS = "100.64.0.1"
NEW = HeadState("[pools.a]\nmax_nodes = 1", (), ADDRESS, has_server=True, missing=("/srv/data",), running=True)


def done(state: HeadState, what: SetUp) -> HeadState:
    """What is there once it was carried out."""
    texts = {change.path: change.new for change in what.files}
    settings = texts.pop(TOML, state.settings)
    return replace(
        state, settings=settings, shares=shares_in(settings.encode()).shares or state.shares,
        files={**state.files, **texts}, masked=state.masked | set(what.mask), missing=(), running=True,
    )  # fmt: skip


def paths(what: SetUp) -> list[str]:
    return [change.path for change in what.files]


def test_a_new_head_gets_all_of_it_and_a_second_run_nothing() -> None:
    first = plan(NEW, TOML)
    assert paths(first) == [TOML, NFS_CONF, DROP_IN]
    assert first.mask == UNNEEDED
    assert first.directories == ("/srv/data",)
    assert (first.restart, first.start) == (True, False)
    assert plan(done(NEW, first), TOML).empty


def test_the_proposed_tables_are_possible_and_stand_after_what_is_there() -> None:
    assert not list(share_faults(PROPOSED))
    (change, *_) = plan(NEW, TOML).files
    assert change.new.startswith(NEW.settings)
    assert tomllib.loads(change.new)["pools"] == {"a": {"max_nodes": 1}}
    assert shares_in(change.new.encode()).shares == PROPOSED
    assert "+[share.home]" in change.diff()


def test_shares_of_the_settings_stay_as_they_are() -> None:
    mine = (Share("scratch", "/scratch"),)
    what = plan(replace(NEW, shares=mine, missing=("/scratch",)), TOML)
    assert TOML not in paths(what)
    assert what.directories == ("/scratch",)


def test_a_server_that_serves_others_keeps_its_settings() -> None:
    what = plan(replace(NEW, others=("/etc/exports: /iso *(ro)",)), TOML)
    assert paths(what) == [TOML]
    assert (what.mask, what.restart, what.start) == ((), False, False)
    assert what.notes


def test_a_share_of_another_server_needs_nothing_on_the_head() -> None:
    what = plan(replace(NEW, shares=(Share("nas", "/mnt/nas", server="nas"),), running=False, missing=()), TOML)
    assert what.empty
    assert what.notes


def test_older_nfs_on_the_head_keeps_the_services_that_it_needs() -> None:
    what = plan(replace(NEW, old_mounts=True), TOML)
    assert what.mask == ()
    assert not masked_in({change.path: change.new for change in what.files}[DROP_IN])


def test_only_what_init_masked_is_unmasked_again() -> None:
    state = replace(NEW, masked=frozenset({"rpcbind.service"}))
    after = done(state, plan(state, TOML))
    assert masked_in(after.files[DROP_IN]) == ("rpcbind.socket", "rpc-statd.service")
    moved = plan(replace(after, address="100.64.0.2"), TOML)
    assert masked_in({change.path: change.new for change in moved.files}[DROP_IN]) == masked_in(after.files[DROP_IN])


def test_another_address_of_the_head_is_put_in_force() -> None:
    moved = plan(replace(done(NEW, plan(NEW, TOML)), address="100.64.0.9"), TOML)
    assert paths(moved) == [NFS_CONF, DROP_IN]
    assert moved.restart
    assert not moved.mask


@pytest.mark.parametrize("name", ["ufw", "firewalld", "nftables"])
def test_a_firewall_is_told_of(name: str) -> None:
    assert any(name in note for note in plan(replace(NEW, firewalls=(name,)), TOML).notes)


def test_the_server_listens_on_the_tailnet_and_waits_for_it() -> None:
    assert f"\nhost={ADDRESS}\n" in nfs_conf(ADDRESS)
    assert "\nvers3=n\n" in nfs_conf(ADDRESS)
    (line,) = [line for line in drop_in(ADDRESS, UNNEEDED).splitlines() if line.startswith("ExecStartPre=")]
    assert f"show to {ADDRESS}" in line
    assert "$(" not in line.replace("$$(", ""), "systemd would take it for its own"


@pytest.mark.parametrize("where", [{"on_root": ("/home",)}, {"setuid": ("/home",)}])
def test_what_root_of_a_node_could_do_to_the_head_is_said(where: dict[str, tuple[str, ...]]) -> None:
    plain, found = plan(NEW, TOML), plan(replace(NEW, **where), TOML)  # type: ignore[arg-type]
    assert len(found.notes) == len(plain.notes) + 1
    assert found == replace(plain, notes=found.notes)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory away")
def test_a_shared_directory_is_made_for_all_and_through_no_link_of_a_users(tmp_path: Path) -> None:
    setup_io.make_for_all(tmp_path / "srv/data")
    assert (tmp_path / "srv/data").stat().st_mode & 0o7777 == 0o1777
    (tmp_path / "lab").mkdir()
    os.chown(tmp_path / "lab", 1500, 1500)
    (tmp_path / "precious").mkdir()
    (tmp_path / "lab/data").symlink_to(tmp_path / "precious")
    with pytest.raises(setup_io.SetUpFailed):
        setup_io.make_for_all(tmp_path / "lab/data")
    assert (tmp_path / "precious").stat().st_mode & 0o7777 == 0o755
