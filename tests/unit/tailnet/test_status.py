from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from meshd.errors import TailnetError
from meshd.tailnet.status import parse_status, parse_whois, path_of

Recording = Callable[[str], str]


def test_a_running_tailnet(recording: Recording) -> None:
    view = parse_status(recording("direct.json")).view()
    assert (view.self_tailnet_ip, view.self_id, view.healthy, view.problems) == ("100.64.0.1", "nMINI00001", True, ())
    peer = view.peers["nMINI00002"]
    assert (peer.hostname, peer.tailnet_ip) == ("gpu-b", "100.64.0.2")
    assert (peer.online, peer.path, peer.tags) == (True, "direct 10.78.0.3:41641", ("tag:gpu",))
    assert peer.last_seen is None and peer.key_expiry is None and not peer.expired


def test_an_idle_peer_has_no_path(recording: Recording) -> None:
    assert parse_status(recording("two-idle.json")).peers["nMINI00002"].path in ("", "direct 10.78.0.3:41641")
    assert parse_status(recording("ephemeral.json")).peers["nMINI00003"].path == ""


def test_an_offline_peer_keeps_its_time_but_no_path(recording: Recording) -> None:
    peer = parse_status(recording("peer-offline.json")).peers["nMINI00002"]
    assert not peer.online
    assert peer.path == ""
    assert peer.last_seen == datetime(2026, 11, 27, 23, 5, 42, tzinfo=UTC)


def test_a_re_authenticated_peer_keeps_its_id_and_address(recording: Recording) -> None:
    before, after = (json.loads(recording(f"{name}.json")) for name in ("peer-back", "reauthed"))
    keys = [{k for k, p in s["Peer"].items() if p["HostName"] == "gpu-b"} for s in (before, after)]
    assert keys[0] != keys[1]
    peers = [parse_status(s).peers["nMINI00002"] for s in (before, after)]
    assert peers[0].tailnet_ip == peers[1].tailnet_ip


def test_an_expired_peer_may_be_online(recording: Recording) -> None:
    peer = parse_status(recording("peer-expired.json")).peers["nMINI00002"]
    assert peer.expired and peer.online and peer.key_expiry is not None and peer.key_expiry.tzinfo is UTC


def test_a_zombie_runs_and_is_not_healthy(recording: Recording) -> None:
    table = parse_status(recording("zombie.json"))
    assert table.backend == "Running"
    view = table.view()
    assert not view.healthy
    assert any("login error" in line for line in view.problems)


def test_a_login_error_alone_makes_it_unhealthy(recording: Recording) -> None:
    status = json.loads(recording("direct.json"))
    status["Health"] = ["You are logged out. The last login error was: invalid key: API key does not exist"]
    assert not parse_status(status).view().healthy
    status["Health"] = ["Tailscale could not connect to any relay server"]
    assert parse_status(status).view().healthy


@pytest.mark.parametrize(("name", "backend"), [("stopped", "Stopped"), ("needs-login", "NeedsLogin")])
def test_not_running(recording: Recording, name: str, backend: str) -> None:
    view = parse_status(recording(f"{name}.json")).view()
    assert not view.healthy
    assert view.problems[0] == f"tailscaled is {backend}, not Running"
    assert view.peers == {}


def test_offline_self_is_not_healthy(recording: Recording) -> None:
    status = json.loads(recording("direct.json"))
    del status["Self"]["Online"]
    view = parse_status(status).view()
    assert not view.healthy and "control server" in view.problems[0]


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ({"CurAddr": "1.2.3.4:41641", "Relay": "fra", "Active": True}, "direct 1.2.3.4:41641"),
        ({"CurAddr": "", "Relay": "fra", "Active": True}, "relay fra"),
        ({"CurAddr": "", "Relay": "fra", "Active": False}, ""),
        ({"CurAddr": "", "PeerRelay": "9.9.9.9:1:7", "Relay": "fra", "Active": True}, "peer-relay 9.9.9.9:1:7"),
        ({}, ""),
    ],
)
def test_paths(entry: dict[str, object], path: str) -> None:
    assert path_of(entry) == path


def test_rubbish_is_survived() -> None:
    status: dict[str, object] = {
        "BackendState": "Running",
        "Self": {"Online": "yes", "ID": 7},
        "TailscaleIPs": "x",
        "Health": None,
        "Peer": {
            "a": None,
            "b": [],
            "c": {
                "ID": "n1",
                "TailscaleIPs": ["fd7a::1", "nonsense", 4],
                "Tags": None,
                "LastSeen": "yesterday",
                "Online": 1,
                "NodeID": True,
            },
        },
    }
    table = parse_status(status)
    assert set(table.peers) == {"n1"} and not table.self_online
    assert table.peers["n1"].tailnet_ip == "" and not table.peers["n1"].online and table.ids == {}


@pytest.mark.parametrize("text", ["", "[]", "nonsense", "{}", '"secret-value"'])
def test_no_status_is_an_error_and_not_an_empty_tailnet(text: str) -> None:
    with pytest.raises(TailnetError) as error:
        parse_status(text)
    assert "secret-value" not in str(error.value)


def test_whois(recording: Recording) -> None:
    peer = parse_whois(recording("whois.json"))
    assert (peer.id, peer.hostname, peer.tailnet_ip, peer.online, peer.tags) == (
        "nMINI00002",
        "gpu-b",
        "100.64.0.2",
        True,
        ("tag:gpu",),
    )
    with pytest.raises(TailnetError):
        parse_whois("{}")
