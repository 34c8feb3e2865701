"""What root does about the exports: the settings' directories, the tailnet's addresses, and nothing of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshd.plan.shares import Share, exports
from meshd.runtime.request import RequestRefused
from meshd.shares.headexports import REQUEST, Exporter, NotExported, place_fault, serve
from tests.exportfs import Exportfs

SETTINGS = '[share.home]\npath = "/home"\n[share.nas]\npath = "/mnt/nas"\nserver = "nas"\n'
OPTIONS = "(rw,sync,no_subtree_check,root_squash,sec=sys)"


class Head:
    def __init__(self, directory: Path) -> None:
        self.nfs = Exportfs(directory)
        self.settings = directory / "meshd.toml"
        self.settings.write_text(SETTINGS)
        self.request = directory / REQUEST
        self.exporter = Exporter(self.nfs.file, self.nfs.etab, str(self.nfs.program))

    def ask(self, body: object) -> bool:
        self.request.write_text(json.dumps(body))
        self.request.chmod(0o600)
        try:
            return serve(self.request, self.exporter, self.settings)
        finally:
            assert not self.request.exists(), "or it would be served for ever"

    def export_to(self, *addresses: str) -> bool:
        return self.ask({"addresses": list(addresses)})


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


def test_exports_come_and_go_with_the_nodes(head: Head) -> None:
    assert head.export_to("100.64.0.3", "100.64.0.2")
    assert head.nfs.in_force() == {f"/home\t100.64.0.2{OPTIONS}", f"/home\t100.64.0.3{OPTIONS}"}
    assert head.nfs.file.stat().st_mode & 0o777 == 0o644
    head.nfs.calls()
    assert not head.export_to("100.64.0.2", "100.64.0.3")
    assert head.nfs.calls() == [], "nothing to do"
    assert head.export_to("100.64.0.3")
    assert head.nfs.calls() == ["-a", "-u 100.64.0.2:/home"]
    assert head.nfs.in_force() == {f"/home\t100.64.0.3{OPTIONS}"}
    assert head.export_to()
    assert head.nfs.in_force() == set()
    assert not head.nfs.file.exists()


def test_what_others_export_stays_also_what_is_in_no_file(head: Head) -> None:
    others = "/srv/iso\t*(ro)\n/home\t10.0.0.0/8(rw)\n"
    head.nfs.etab.write_text(others)
    head.export_to("100.64.0.2")
    head.export_to()
    assert head.nfs.etab.read_text() == others


def test_new_options_are_put_in_force(head: Head) -> None:
    head.export_to("100.64.0.2")
    head.settings.write_text('[share.home]\npath = "/home"\noptions = ["ro"]\n')
    assert head.export_to("100.64.0.2")
    assert head.nfs.in_force() == {f"/home\t100.64.0.2{OPTIONS.replace('rw', 'ro')}"}


def test_an_export_that_somebody_took_away_comes_back(head: Head) -> None:
    head.export_to("100.64.0.2")
    head.nfs.etab.write_text("")
    head.export_to("100.64.0.2")
    assert head.nfs.in_force() == {f"/home\t100.64.0.2{OPTIONS}"}


def test_an_export_that_is_not_in_force_is_told_and_the_others_are(head: Head) -> None:
    head.nfs.fails.write_text("100.64.0.2")
    with pytest.raises(NotExported, match="does not support NFS export"):
        head.export_to("100.64.0.2", "100.64.0.3")
    assert head.nfs.in_force() == {f"/home\t100.64.0.3{OPTIONS}"}
    head.nfs.fails.unlink()
    head.export_to("100.64.0.2", "100.64.0.3")
    assert len(head.nfs.in_force()) == 2


@pytest.mark.parametrize(
    "body",
    [
        {}, {"addresses": {}}, {"addresses": None}, {"addresses": ["*"]}, {"addresses": ["10.0.0.1"]},
        {"addresses": ["100.64.0.1", "100.64.0.0/10"]}, {"addresses": ["100.64.0.1(rw,no_root_squash)"]},
        {"addresses": ["100.64.0.1\n/ *"]}, {"addresses": [1681915906]}, {"addresses": [["100.64.0.1"]]},
    ],
)  # fmt: skip
def test_nothing_is_exported_to_other_addresses(head: Head, body: object) -> None:
    head.export_to("100.64.0.9")
    before = head.nfs.in_force()
    with pytest.raises(RequestRefused):
        head.ask(body)
    assert head.nfs.in_force() == before


@pytest.mark.parametrize("path", ["/", "/etc", "/var/lib/meshd", "relative"])
def test_settings_that_would_open_the_head_export_nothing(head: Head, path: str) -> None:
    head.settings.write_text(f'[share.a]\npath = "{path}"\n')
    with pytest.raises(RequestRefused):
        head.export_to("100.64.0.2")
    assert not head.nfs.file.exists()


def test_what_a_user_may_exchange_is_not_exported(tmp_path: Path) -> None:
    """The server follows links: a user who owns the directory above would choose what nodes get, e.g. /etc."""
    (tmp_path / "lab/data").mkdir(parents=True)
    (tmp_path / "lab").chmod(0o777)
    assert str(tmp_path / "lab") in place_fault(Share("lab", f"{tmp_path}/lab/data"))
    (tmp_path / "link").symlink_to("/etc")
    assert "leads to /etc" in place_fault(Share("link", f"{tmp_path}/link"))
    assert place_fault(Share("home", "/home")) == ""


@pytest.mark.skipif(not Path("/var/lock").is_symlink(), reason="/var/lock is /run/lock on Debian")
def test_others_are_exported_all_the_same(head: Head) -> None:
    head.settings.write_text(f'{SETTINGS}[share.lock]\npath = "/srv/lock"\nsource = "/var/lock"\n')
    with pytest.raises(NotExported, match="leads to /run/lock"):
        head.export_to("100.64.0.2")
    assert head.nfs.in_force() == {f"/home\t100.64.0.2{OPTIONS}"}


def test_a_thousand_nodes_that_leave_together_are_a_few_calls(head: Head) -> None:
    many = [f"100.64.{index // 250}.{index % 250 + 1}" for index in range(1000)]
    head.exporter.put(exports((Share("home", "/home"),), many))
    head.nfs.calls()
    head.exporter.put(exports((Share("home", "/home"),), many[:1]))
    assert len(head.nfs.calls()) == 6
    assert len(head.nfs.in_force()) == 1
