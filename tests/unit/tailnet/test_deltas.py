from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from meshd.errors import TailnetError
from meshd.tailnet.deltas import apply, parse_delta
from meshd.tailnet.status import TailnetTable, parse_status

Recording = Callable[[str], str]
EMPTY = TailnetTable(backend="", self_online=False, self_id="", self_tailnet_ip="")


def without_paths(table: TailnetTable) -> TailnetTable:
    return replace(table, peers={id_: replace(peer, path="") for id_, peer in table.peers.items()})


def test_the_recorded_bus_leads_to_the_recorded_statuses(recording: Recording) -> None:
    """The bus of one session, from before the first peer to after the last, passes through each status in turn."""
    wanted = ["two-idle", "peer-offline", "peer-back", "ephemeral", "peer-expired", "deleted"]
    statuses = [without_paths(parse_status(recording(f"{name}.json"))) for name in wanted]
    table = EMPTY
    for line in recording("bus.jsonl").splitlines():
        table, _ = apply(table, parse_delta(line))
        while statuses and without_paths(table).peers == statuses[0].peers and table.ids == statuses[0].ids:
            statuses.pop(0)
    assert not statuses


def test_the_first_message_is_whole_and_asks_for_nothing(recording: Recording) -> None:
    table, resync = apply(EMPTY, parse_delta(recording("bus.jsonl").splitlines()[0]))
    assert table.self_tailnet_ip == "100.64.0.1" and table.healthy and not resync


def test_a_quiet_message_is_empty() -> None:
    assert parse_delta('{"Version":"1.102.5","State":null,"PeersChanged":null,"Engine":null}').empty


def test_a_patch_takes_a_peer_offline_and_its_path_with_it(recording: Recording) -> None:
    table = parse_status(recording("direct.json"))
    note = {"PeerChangedPatch": [{"NodeID": 2, "Online": False, "LastSeen": "2026-11-27T23:05:42Z"}]}
    after, resync = apply(table, parse_delta(json.dumps(note)))
    assert without_paths(after).peers == parse_status(recording("peer-offline.json")).peers
    assert after.peers["nMINI00002"].path == "" and not resync


def test_a_changed_peer_keeps_a_known_path(recording: Recording) -> None:
    table = parse_status(recording("direct.json"))
    node = json.loads(recording("whois.json"))["Node"]
    after, resync = apply(table, parse_delta(json.dumps({"PeersChanged": [node]})))
    assert after == table and not resync


@pytest.mark.parametrize(
    "note",
    [
        {"PeerChangedPatch": [{"NodeID": 99, "Online": True}]},
        {"PeersRemoved": [99]},
        {"PeersChanged": [{"ID": 5}]},
        {"SelfChange": {"StableID": "nMINI00001", "Addresses": ["100.64.0.1/32"], "Name": "gpu-a.tsr.ts.net."}},
        {"State": 6},
        {"Health": {"Warnings": None}},
        {"ErrMessage": "invalid key: API key does not exist"},
        {"NetMap": {}},
    ],
)
def test_what_a_delta_cannot_tell_asks_for_a_status(recording: Recording, note: dict[str, object]) -> None:
    table = parse_status(recording("direct.json"))
    after, resync = apply(table, parse_delta(json.dumps(note)))
    assert resync and after.peers == table.peers


def test_a_whole_netmap_removes_nobody_by_itself(recording: Recording) -> None:
    table = parse_status(recording("direct.json"))
    after, resync = apply(table, parse_delta('{"SelfChange":{"StableID":"nMINI00001"},"PeersChanged":[]}'))
    assert after.peers == table.peers and resync


def test_health_and_state(recording: Recording) -> None:
    table = parse_status(recording("direct.json"))
    told = [parse_delta(line) for line in recording("bus.jsonl").splitlines()]
    trouble = next(delta for delta in told if delta.health)
    assert not apply(table, trouble)[0].healthy
    assert apply(table, parse_delta('{"State":4}'))[0].view().problems[0] == "tailscaled is Stopped, not Running"
    assert apply(table, parse_delta('{"State":42}'))[0].backend == "42"


@pytest.mark.parametrize("line", ["", "{", "[]", '{"InitialStatus":{"Self":{}}}'])
def test_an_unreadable_message_is_an_error(line: str) -> None:
    with pytest.raises(TailnetError):
        parse_delta(line)
