"""Which shares are possible, what a node mounts, and what the head exports."""

from __future__ import annotations

import pytest

from meshd.plan.shares import (
    Share,
    exports,
    exports_text,
    in_force,
    mount_options,
    node_address_fault,
    read_exports,
    section_value,
    share_faults,
    shares_in,
)

HOME = Share("home", "/home")
DATA = Share("data", "/srv/data", options=("ro", "nconnect=4"))


def keys(*shares: Share) -> list[tuple[str, str]]:
    return [(fault.name, fault.key) for fault in share_faults(shares)]


@pytest.mark.parametrize(
    "path", ["/home", "/srv/data", "/mnt/a.b_c+d@e-f", "/opt/software", "/data", "/home2", "/usrx"]
)
def test_a_directory_of_data_may_be_shared(path: str) -> None:
    assert keys(Share("a", path)) == []


@pytest.mark.parametrize(
    "path",
    [
        "/", "", "home", "./home", "/home/", "//home", "/home//a", "/home/..", "/a/../etc", "/.", "/a/.b", "/-x",
        "/a b",
        "/a\nb", "/a\tb", "/a,b", "/a\\b", '/a"b', "/a:b", "/a#b", "/é", "/" + 256 * "a",
        "/etc", "/etc/slurm", "/usr", "/usr/local", "/var", "/var/lib/x", "/tmp", "/tmp/x", "/root", "/run", "/dev/shm",
        "/proc", "/sys", "/boot", "/bin", "/lib64", "/opt", "/opt/meshd-node", "/opt/meshd/x",
    ],
)  # fmt: skip
def test_a_path_that_is_no_plain_one_or_the_systems_is_refused(path: str) -> None:
    assert keys(Share("a", path))[0] == ("a", "path")


def test_no_share_is_inside_another_or_at_its_place() -> None:
    assert keys(Share("a", "/srv"), Share("b", "/srv/data")) == [("b", "path")]
    assert keys(Share("a", "/srv/data"), Share("b", "/srv")) == [("b", "path")]
    assert keys(Share("a", "/srv"), Share("b", "/srv", server="nas")) == [("b", "path")]
    assert keys(Share("a", "/srv"), Share("b", "/srv2")) == []


@pytest.mark.parametrize("server", ["nas", "nas.example.org", "100.64.0.9"])
def test_a_server_is_a_name_or_an_address(server: str) -> None:
    assert keys(Share("a", "/srv", server=server, source="/")) == []


@pytest.mark.parametrize("server", ["nas:/x", "-nas", "nas ", "a b", "nas,b", "fd00::1", "[fd00::1]", "a/b", "."])
def test_other_servers_are_refused(server: str) -> None:
    assert keys(Share("a", "/srv", server=server)) == [("a", "server")]


@pytest.mark.parametrize(
    "source", ["/", "/etc", "/etc/x", "/var", "/var/lib/meshd", "/root", "relative", "/a/..", "/opt"]
)
def test_the_head_does_not_export_what_makes_it_a_head(source: str) -> None:
    assert keys(Share("a", "/srv", source=source)) == [("a", "source")]


def test_a_directory_below_var_may_be_exported() -> None:
    assert keys(Share("a", "/srv", source="/var/nfs/data")) == []


@pytest.mark.parametrize(
    "option",
    ["soft", "softerr", "sec=krb5", "sec=none", "sec=sys", "suid", "dev", "atime", "nolock", "vers=3", "vers=",
     "nconnect=17", "nconnect=x", "nconnect=-1", "rsize=1",
     "ro,soft", "ro soft", "", "hard=1", "mountproto=udp", "addr=1.2.3.4",
     "lookupcache=soft"],
)  # fmt: skip
def test_an_option_that_could_lose_data_or_open_the_node_is_refused(option: str) -> None:
    assert keys(Share("a", "/srv", options=(option,))) == [("a", "options")]


def test_an_option_of_the_settings_replaces_the_usual_one() -> None:
    options = ("vers=4.1", "ro", "nconnect=4", "actimeo=60", "lookupcache=pos", "rsize=1048576", "nocto", "fsc")
    share = Share("a", "/srv", options=options)
    assert keys(share) == []
    assert mount_options(share) == ("hard", "noatime", "nosuid", "nodev", *options)
    assert mount_options(HOME) == ("vers=4.2", "hard", "noatime", "nosuid", "nodev")


def test_too_many_shares_and_impossible_names() -> None:
    assert keys(*(Share(f"s{index}", f"/srv/{index}") for index in range(17))) == [("", "")]
    assert keys(Share("Home", "/home")) == [("Home", "")]


def test_a_node_is_told_the_shares_in_the_order_of_their_paths() -> None:
    nas = Share("nas", "/mnt/nas", server="nas", source="/export")
    assert section_value((DATA, nas, HOME)) == {
        "shares": [
            {"path": "/home", "server": "", "source": "/home", "options": list(mount_options(HOME))},
            {"path": "/mnt/nas", "server": "nas", "source": "/export", "options": list(mount_options(nas))},
            {"path": "/srv/data", "server": "", "source": "/srv/data", "options": list(mount_options(DATA))},
        ]
    }
    assert section_value(()) == {"shares": []}


def test_each_node_gets_a_line_for_each_share_of_the_head() -> None:
    nas = Share("nas", "/mnt/nas", server="nas")
    text = exports_text(exports((DATA, nas, HOME), ["100.64.0.10", "100.64.0.9"]))
    assert text.splitlines()[1:] == [
        '"/home" 100.64.0.9(rw,sync,no_subtree_check,root_squash,sec=sys)',
        '"/home" 100.64.0.10(rw,sync,no_subtree_check,root_squash,sec=sys)',
        '"/srv/data" 100.64.0.9(ro,sync,no_subtree_check,root_squash,sec=sys)',
        '"/srv/data" 100.64.0.10(ro,sync,no_subtree_check,root_squash,sec=sys)',
    ]
    assert read_exports(text) == exports((HOME, DATA), ["100.64.0.9", "100.64.0.10"])


def test_what_is_in_force_is_read_from_etab() -> None:
    etab = "/home\t100.64.0.9(rw,sync)\n/a\\040b\t*(ro)\n"
    assert in_force(etab) == {("/home", "100.64.0.9"), ("/a b", "*")}


@pytest.mark.parametrize("address", ["10.0.0.1", "100.128.0.1", "0.0.0.0", "*", "100.64.0.1/8", "", None, 5, "fd00::1"])
def test_only_an_address_of_the_tailnet_is_a_nodes(address: object) -> None:
    assert node_address_fault(address)
    assert not node_address_fault("100.64.0.1")


def test_root_reads_the_shares_of_the_settings_itself() -> None:
    text = (
        b'[share.home]\npath = "/home"\n[share.data]\npath = "/srv/data"\noptions = ["ro", "nconnect=4"]\n[pools.a]\n'
    )
    assert shares_in(text).shares == (HOME, DATA)
    assert shares_in(b"").shares == ()


@pytest.mark.parametrize(
    "text",
    [b"[share.a]", b'[share.a]\npath = "/etc"', b"[share]\na = 1", b"share = 1", b"[", b"\xff", b"[share.a]\npath = 3",
     b'[share.a]\npath = "/a"\noptions = [1]', b'[share.a]\npath = "/a"\noptions = "ro"'],
)  # fmt: skip
def test_root_exports_nothing_by_settings_that_it_cannot_read(text: bytes) -> None:
    read = shares_in(text)
    assert read.fault
    assert read.shares == ()
