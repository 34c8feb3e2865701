"""Whatever shares and addresses there are: the head exports each share of its own to each node, and nothing else."""

from __future__ import annotations

import tempfile
from ipaddress import IPv4Address
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from meshd.plan.shares import (
    TAILNET,
    Share,
    exports,
    exports_text,
    in_force,
    node_address_fault,
    read_exports,
    share_faults,
    shares_in,
)
from meshd.shares.headexports import Exporter
from tests.exportfs import Exportfs
from tests.tiers import bounded

SYSTEM = ("/etc", "/usr", "/var", "/root", "/proc", "/sys", "/dev", "/run", "/boot", "/bin", "/sbin", "/lib")
part = st.text("ab.-_@+/ \t\n\"'\\#*(),:=%$", max_size=6)
path = st.one_of(
    st.sampled_from(["/", "/home", "/srv/data", "/srv", "/etc", "/var/lib", "/tmp", "/mnt/x"]),
    st.lists(part, max_size=4).map(lambda parts: "/" + "/".join(parts)),
    part,
)
share = st.builds(
    Share,
    name=st.sampled_from(["a", "b", "c", "A", ""]),
    path=path,
    server=st.one_of(st.just(""), st.sampled_from(["nas", "100.64.0.9"]), part),
    source=st.one_of(st.just(""), path),
    options=st.lists(st.one_of(st.sampled_from(["ro", "nconnect=4", "soft", "sec=none"]), part), max_size=2).map(tuple),
)
address = st.integers(int(TAILNET[0]), int(TAILNET[-1])).map(lambda number: str(IPv4Address(number)))


@settings(max_examples=bounded(400, 5000))
@given(st.lists(share, max_size=3), st.lists(address, max_size=4, unique=True))
def test_what_passes_the_rules_is_exported_line_by_line(shares: list[Share], addresses: list[str]) -> None:
    if list(share_faults(shares)):
        return
    wanted = exports(shares, addresses)
    own = {one.at_server for one in shares if not one.server}
    assert {(one.path, one.address) for one in wanted} == {(path, to) for path in own for to in addresses}
    for line in exports_text(wanted).splitlines()[1:]:
        path, _, client = line.partition('" ')
        assert path.startswith('"/') and path[1:] in own
        assert not any(path[1:] == root or path[1:].startswith(f"{root}/") for root in SYSTEM[:2] + SYSTEM[3:])
        assert client.partition("(")[0] in addresses
        assert "no_root_squash" not in client and "insecure" not in client
    assert read_exports(exports_text(wanted)) == wanted


@settings(max_examples=bounded(300, 5000))
@given(st.lists(share, max_size=3))
def test_shares_that_pass_stand_side_by_side_and_root_reads_the_same(shares: list[Share]) -> None:
    unique = list({one.name: one for one in shares}.values())
    if list(share_faults(unique)):
        return
    for one in unique:
        for other in unique:
            assert one is other or not f"{one.path}/".startswith(f"{other.path}/")
    tables = "".join(
        f'[share.{one.name}]\npath = "{one.path}"\nserver = "{one.server}"\nsource = "{one.source}"\n'
        f"options = [{', '.join(chr(34) + option + chr(34) for option in one.options)}]\n"
        for one in unique
    )
    assert shares_in(tables.encode()).shares == tuple(unique)


@settings(max_examples=bounded(400, 5000))
@given(st.one_of(st.text(max_size=20), st.integers(), address, st.binary(max_size=4)))
def test_only_a_plain_address_of_the_tailnet_is_accepted(value: object) -> None:
    if not node_address_fault(value):
        assert isinstance(value, str)
        assert IPv4Address(value) in TAILNET
        assert str(IPv4Address(value)) == value


@settings(max_examples=bounded(6, 200), deadline=None)
@given(st.lists(st.lists(st.sampled_from(["100.64.0.2", "100.64.0.3", "100.64.0.4"]), unique=True), max_size=3))
def test_after_any_history_exactly_the_last_wish_is_in_force_beside_others(history: list[list[str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        nfs = Exportfs(Path(name))
        others = {("/iso", "*"), ("/home", "10.0.0.0/8")}
        nfs.etab.write_text("".join(f"{path}\t{client}(ro)\n" for path, client in sorted(others)))
        exporter = Exporter(nfs.file, nfs.etab, str(nfs.program))
        addresses: list[str] = []
        for addresses in history:
            exporter.put(exports((Share("home", "/home"),), addresses))
        assert in_force(nfs.etab.read_text()) == others | {("/home", to) for to in addresses}
