"""A login that control refuses is mended by the machine itself; a good one is never touched."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.node.meshd_node import handshake, login, reauth
from deploy.node.meshd_node.commands import carry_out
from deploy.node.meshd_node.login_watch import (
    LOOK_S,
    NOTICES_MAX,
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    SILENT_S,
    SURE_S,
    LoginWatch,
)
from deploy.node.meshd_node.node import Node
from deploy.node.meshd_node.paths import Paths
from deploy.node.meshd_node.tailscale import TailscaleFault
from tests.unit.node.standins import House, program, until
from tests.unit.node.tailscaled import REFUSED, UNREACHED, Tailscaled

RECORDINGS = Path(__file__).parent.parent / "tailnet/recordings"
SETTINGS = "--accept-dns=false --login-server=https://control --hostname=mesh-h100-1-k7q2mz"
EMPTY = f"tailscale up {SETTINGS} --auth-key=file:/dev/null --accept-risk=lose-ssh --timeout=2s"


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDINGS / f"{name}.json").read_text())
    return found


def test_what_tailscaled_was_recorded_to_say() -> None:
    assert login.refused_login(recorded("zombie")) == REFUSED
    assert not login.online(recorded("zombie"))
    for name in (
        "two-idle",
        "direct",
        "reauthed",
        "peer-offline",
        "peer-expired",
        "needs-login",
        "stopped",
        "ephemeral",
    ):
        assert login.refused_login(recorded(name)) == "", name


@pytest.mark.parametrize(
    ("changes", "is_zombie"),
    [
        ({}, True),
        ({"BackendState": "Starting"}, True),
        ({"BackendState": "NeedsLogin"}, False),
        ({"BackendState": "Stopped"}, False),
        ({"Self": {"Online": True}}, False),
        ({"Health": []}, False),
        ({"Health": None, "Self": None}, False),
        ({"Health": ["no DERP home"]}, False),
        ({"Health": [UNREACHED]}, False),
        ({"Health": [UNREACHED, REFUSED]}, True),
    ],
)
def test_only_a_refusal_makes_a_zombie(changes: dict[str, Any], *, is_zombie: bool) -> None:
    assert bool(login.refused_login({**recorded("zombie"), **changes})) is is_zombie


class Watched:
    """A machine with a tailscaled, and a watch whose time moves by hand."""

    def __init__(self, root: Path, systemd: bool = True) -> None:
        self.tailscaled = Tailscaled(root)
        program(root / "bin", "s6-svc", f'echo "s6-svc $*" >>{root}/calls\n')
        if systemd:
            (root / "run/systemd/system").mkdir(parents=True)
        self.now_s = 1000.0
        self.node = Node(Paths(root, root / "proc"))
        self.moves: list[tuple[str, str]] = []
        self.watch = LoginWatch(
            self.node, lambda: self.now_s, lambda: 1.0, within_s=0.05, moved=lambda *pair: self.moves.append(pair)
        )

    def store_key(self) -> str:
        """Keep an auth key; how it is handed to tailscale."""
        self.node.paths.auth_key.parent.mkdir(parents=True)
        self.node.paths.auth_key.write_text("tskey-auth-secret\n")
        return f"--auth-key=file:{self.node.paths.auth_key}"

    def looks(self, for_s: float) -> None:
        """Look for so long, as often as the watch wants to."""
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            self.now_s += self.watch.look()


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Watched]:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    found = Watched(tmp_path, systemd=getattr(request, "param", True))
    yield found
    found.tailscaled.close()


def test_a_good_login_is_left_alone(watched: Watched) -> None:
    watched.looks(3600)
    assert watched.tailscaled.calls() == []
    assert (watched.watch.problem, watched.watch.notices()) == ("", [])


def test_a_control_server_that_cannot_be_reached_is_waited_for(watched: Watched) -> None:
    watched.tailscaled.health = [UNREACHED]
    watched.looks(3600)
    assert watched.tailscaled.calls() == []


def test_a_zombie_is_mended_and_told(watched: Watched) -> None:
    watched.tailscaled.health = [REFUSED]
    watched.tailscaled.cures = {"empty"}
    assert watched.watch.look() == SURE_S, "one look is not enough"
    assert watched.tailscaled.calls() == []
    watched.now_s += SURE_S
    assert watched.watch.look() == LOOK_S
    assert watched.tailscaled.calls() == [EMPTY]
    (notice,) = watched.watch.notices()
    assert "API key does not exist" in notice
    assert notice.endswith("the old login is back")
    watched.watch.drop_notices(1)
    assert (watched.watch.problem, watched.watch.notices()) == ("", [])
    watched.looks(3600)
    assert watched.tailscaled.calls() == [EMPTY]


def test_a_zombie_that_mends_itself_is_not_touched(watched: Watched) -> None:
    watched.tailscaled.health = [REFUSED]
    watched.watch.look()
    watched.tailscaled.health = []
    watched.looks(60)
    assert watched.tailscaled.calls() == []
    assert watched.watch.notices()[0].endswith("it came back by itself")


@pytest.mark.parametrize("watched", [True, False], indirect=True, ids=["systemd", "s6"])
def test_where_an_empty_key_does_not_help_tailscaled_is_restarted(watched: Watched) -> None:
    watched.tailscaled.health = [REFUSED]
    watched.tailscaled.cures = {"restart"}
    watched.looks(20)
    service = watched.node.paths.pod_services / "tailscaled"
    restart = [f"s6-svc -T 20000 -wd -d {service}", f"s6-svc -T 10000 -wu -u {service}"]
    if watched.node.systemd:
        restart = ["systemctl restart tailscaled.service"]
    assert watched.tailscaled.calls() == [EMPTY, *restart]
    assert [notice.endswith("after a restart of tailscaled") for notice in watched.watch.notices()] == [True]


def test_what_does_not_help_is_tried_ever_more_seldom_and_told_as_a_problem(watched: Watched) -> None:
    watched.tailscaled.health = [REFUSED]
    tries: list[float] = []
    seen = 0
    while watched.now_s < 1000 + 6 * PAUSE_MAX_S:
        pause_s = watched.watch.look()
        assert 1.0 <= pause_s <= LOOK_S
        if len(watched.tailscaled.calls()) > seen:
            seen = len(watched.tailscaled.calls())
            tries.append(watched.now_s)
        watched.now_s += pause_s
    pauses = [b - a for a, b in itertools.pairwise(tries)]
    assert PAUSE_FIRST_S <= pauses[0] <= PAUSE_FIRST_S + 1
    assert pauses == sorted(pauses)
    assert pauses[-1] >= PAUSE_MAX_S
    assert REFUSED in watched.watch.problem
    assert f"tried {len(tries)} times" in watched.watch.problem
    watched.tailscaled.health = []
    watched.looks(LOOK_S)
    assert watched.watch.problem == ""


def test_an_expired_node_key_is_renewed_with_the_stored_key(watched: Watched) -> None:
    watched.tailscaled.backend = "NeedsLogin"
    watched.tailscaled.cures = {"key"}
    watched.looks(20)
    assert "no auth key is kept here, nor a spare one" in watched.watch.problem
    key = watched.store_key()
    watched.looks(PAUSE_FIRST_S + 1)
    (call,) = watched.tailscaled.calls()
    assert key in call
    assert "force-reauth" not in call
    (notice,) = watched.watch.notices()
    assert "its node key has expired" in notice
    assert notice.endswith("it is logged in again, with the address 100.64.0.7")
    assert watched.moves == []


# -- a device that was deleted by hand --------------------------------------------------------------------------------


def test_a_deleted_device_is_made_anew_with_the_stored_key(watched: Watched) -> None:
    key = watched.store_key()
    watched.looks(LOOK_S)
    watched.tailscaled.deleted, watched.tailscaled.cures = True, {"key"}
    watched.watch.look()
    watched.now_s += SILENT_S - 1
    watched.watch.look()
    assert watched.tailscaled.calls() == [], "a control server that restarts looks the same for a moment"
    watched.now_s += 1
    assert watched.watch.look() == LOOK_S
    first, second = watched.tailscaled.calls()
    assert first == EMPTY, "the key is shown only to a control server that wants a login"
    assert key in second
    assert "force-reauth" not in second
    assert watched.moves == [("100.64.0.7", "100.64.0.8")]
    (notice,) = watched.watch.notices()
    assert notice.endswith("it is logged in again, with the address 100.64.0.8")
    watched.looks(3600)
    assert len(watched.tailscaled.calls()) == 2


def test_a_deleted_device_is_made_anew_with_the_spare_key_which_is_used_up_then(watched: Watched) -> None:
    spare = watched.node.paths.spare_key
    spare.parent.mkdir(parents=True, exist_ok=True)
    spare.write_text("tskey-auth-spare\n")
    watched.looks(LOOK_S)
    watched.tailscaled.deleted = True
    watched.looks(SILENT_S + 1)
    assert spare.exists(), "a login that was not taken may not have used it"
    watched.tailscaled.cures = {"key"}
    watched.looks(PAUSE_FIRST_S + 1)
    calls = watched.tailscaled.calls()
    assert calls[0] == EMPTY, "the key is shown only to a control server that wants a login"
    assert len([call for call in calls if str(spare) in call]) == 2 and "force-reauth" not in " ".join(calls)
    assert watched.moves == [("100.64.0.7", "100.64.0.8")]
    assert not spare.exists()


def test_a_key_that_is_shared_is_used_before_a_spare_one(watched: Watched) -> None:
    key, spare = watched.store_key(), watched.node.paths.spare_key
    spare.write_text("tskey-auth-spare\n")
    watched.looks(LOOK_S)
    watched.tailscaled.deleted, watched.tailscaled.cures = True, {"key"}
    watched.looks(SILENT_S + 1)
    assert key in watched.tailscaled.calls()[-1] and spare.exists()


def test_a_deleted_device_after_a_restart_of_tailscaled(watched: Watched) -> None:
    key = watched.store_key()
    watched.tailscaled.deleted, watched.tailscaled.cures = True, {"key"}
    watched.tailscaled.backend = "NeedsLogin"
    watched.looks(LOOK_S)
    (call,) = watched.tailscaled.calls()
    assert key in call
    assert login.DELETED in watched.watch.notices()[0]


@pytest.mark.parametrize("stored", [True, False])
def test_a_deleted_device_with_a_dead_key_or_none_is_tried_ever_more_seldom(watched: Watched, *, stored: bool) -> None:
    key = watched.store_key() if stored else "no key"
    watched.tailscaled.deleted = True
    watched.looks(SILENT_S + 1)
    assert login.DELETED in watched.watch.problem or REFUSED in watched.watch.problem
    assert stored or "no auth key is kept here" in watched.watch.problem
    watched.looks(4 * 3600)
    tries = len([call for call in watched.tailscaled.calls() if key in call])
    assert 5 <= tries <= 16 if stored else tries == 0
    assert not any("restart" in call for call in watched.tailscaled.calls()), "that is no cure, and jobs run here"
    watched.tailscaled.cures = {"key"}
    stored or watched.store_key()
    watched.looks(PAUSE_MAX_S + LOOK_S)
    assert watched.watch.problem == ""
    assert watched.watch.notices()[0].endswith("with the address 100.64.0.8")


def test_a_control_server_that_is_away_is_never_shown_the_key(watched: Watched) -> None:
    watched.store_key()
    watched.tailscaled.away = True
    watched.looks(3600)
    assert watched.tailscaled.calls() == [EMPTY], "asked once; then tailscaled says that it tries by itself"
    assert watched.watch.problem == ""
    watched.tailscaled.away, watched.tailscaled.health = False, []
    watched.looks(60)
    assert watched.watch.notices() == [], "every node would tell of it"


def test_a_tailscale_that_was_switched_off_is_switched_on(watched: Watched) -> None:
    watched.tailscaled.backend = "Stopped"
    watched.tailscaled.cures = {"up"}
    watched.looks(20)
    (call,) = watched.tailscaled.calls()
    assert call == f"tailscale up {SETTINGS} --accept-risk=lose-ssh --timeout=20s"
    assert watched.watch.notices()[0].endswith("(tailscale was switched off here): it is switched on again")


def test_after_a_new_login_the_peers_that_are_talked_to_are_greeted(watched: Watched) -> None:
    """So that no connection waits for WireGuard's next try; one that does not answer holds nothing up."""
    watched.tailscaled.cures = {"key"}
    watched.tailscaled.peers = {"100.64.0.1": True, "100.64.0.8": False}
    watched.node.paths.auth_key.parent.mkdir(parents=True)
    watched.node.paths.auth_key.write_text("tskey-auth-secret\n")
    assert reauth.login(watched.node)["node_key"] == "nodekey:2"
    pinged = watched.tailscaled.pinged
    assert [one for one in pinged if one.endswith(".1")] == ["disco 100.64.0.1", "TSMP 100.64.0.1"]
    assert [one for one in pinged if one.endswith(".8")] == ["disco 100.64.0.8"] * handshake.PRIME_TRIES


def greet(watched: Watched, address: str = "100.64.0.8") -> dict[str, Any]:
    args = {"address": address, "node_key": "nodekey:100.64.0.8"}
    return carry_out(watched.node, {"id": "g1", "verb": "greet", "args": args})


@pytest.mark.parametrize("answers", [True, False])
def test_a_node_of_the_same_job_is_greeted_once_its_new_key_is_known(watched: Watched, *, answers: bool) -> None:
    """The head may know it sooner: until then a greeting would go over the old session."""
    watched.tailscaled.peers = {"100.64.0.8": answers}
    watched.tailscaled.knows_new_key_at = 4
    result = greet(watched)
    assert (result["ok"], result["data"]) == (True, {"answered": answers})
    once = ["disco 100.64.0.8", "TSMP 100.64.0.8"]
    assert watched.tailscaled.pinged == (once if answers else ["disco 100.64.0.8"] * handshake.PRIME_TRIES)
    assert len(watched.tailscaled.whois) == 4


def test_who_stays_unknown_is_not_waited_for_long(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "KNOWN_S", 0.12)
    result = greet(watched)
    assert (result["ok"], result["data"], watched.tailscaled.pinged) == (True, {"answered": False}, [])
    assert len(watched.tailscaled.whois) > 1


def test_nothing_but_an_address_is_greeted(watched: Watched) -> None:
    result = greet(watched, "100.64.0.8&type=x")
    assert not result["ok"] and "the arguments of greet cannot be used" in result["detail"]
    assert watched.tailscaled.pinged == watched.tailscaled.whois == []


def test_a_login_that_is_refused_greets_nobody(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.node.meshd_node.reauth.ONLINE_S", 0.05)
    watched.tailscaled.peers = {"100.64.0.1": True}
    with pytest.raises(TailscaleFault):
        reauth.login(watched.node)
    assert watched.tailscaled.pinged == []


def test_a_tailscaled_that_is_away_is_no_fault_of_the_login(watched: Watched) -> None:
    watched.tailscaled.close()
    watched.node.paths.tailscaled_socket.unlink()
    watched.looks(600)
    assert (watched.watch.problem, watched.tailscaled.calls()) == ("", [])


def test_few_notices_are_kept(watched: Watched) -> None:
    for _ in range(NOTICES_MAX + 3):
        watched.tailscaled.health = [REFUSED]
        watched.watch.look()
        watched.tailscaled.health = []
        watched.watch.look()
    assert len(watched.watch.notices()) == NOTICES_MAX


async def test_the_head_is_told_once(house: House) -> None:
    tailscaled = Tailscaled(house.machine.root)
    try:
        tailscaled.health, tailscaled.cures = [REFUSED], {"empty"}
        await house.machine.start()
        await until(lambda: [report for report in house.handlers.reports if report.notices])
        count = len(house.handlers.reports)
        await until(lambda: len(house.handlers.reports) > count + 1)
        told = [notice for report in house.handlers.reports for notice in report.notices]
        assert len(told) == 1
        assert "the old login is back" in told[0]
    finally:
        tailscaled.close()
