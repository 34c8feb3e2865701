"""How the agent closes the metadata service: by the first tool that can, once, and what it tells when none can."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Sequence

import pytest

from deploy.node.meshd_node import metadata, units
from deploy.node.meshd_node.errors import NodeError, ToolFailed, ToolMissing
from deploy.node.meshd_node.tools import Result


class Machine:
    """Runs the tools that it has; remembers iptables' chains and ip's rules."""

    def __init__(self, *tools: str) -> None:
        self.tools = tools
        self.calls: list[str] = []
        self.tables: list[str] = []
        hooks = ("iptables OUTPUT", "iptables FORWARD", "ip6tables OUTPUT", "ip6tables FORWARD")
        self.rules: dict[str, list[str]] = {hook: [] for hook in hooks}

    def run(self, argv: Sequence[str], timeout_s: float, stdin: bytes) -> Result:
        if argv[0] not in self.tools:
            raise ToolMissing(argv[0])
        self.calls.append(" ".join(argv))
        words = [word for word in argv[1:] if word not in ("-w", "-n")]
        if argv[0] == "nft":
            if words[0] == "list" and not self.tables:
                raise ToolFailed("nft", 1, "No such file or directory")
            self.tables = [stdin.decode()] if words[0] == "-f" else self.tables
        elif argv[0] in ("iptables", "ip6tables"):
            self._iptables(words[0], f"{argv[0]} {words[1]}", " ".join(words[2:]).removeprefix("1 "))
        else:
            return Result(0, self._ip(words), "")
        return Result(0, "", "")

    def _iptables(self, verb: str, chain: str, rule: str) -> None:
        if verb == "-N":
            self.rules[chain] = []
        elif chain not in self.rules or (verb == "-C" and rule not in self.rules[chain]):
            raise ToolFailed("iptables", 1, "no such chain or rule")
        elif verb == "-F":
            self.rules[chain] = []
        elif verb in ("-A", "-I"):
            self.rules[chain].append(rule)

    def _ip(self, words: list[str]) -> str:
        mine = self.rules.setdefault(f"ip {words[0]}", [])
        if words[2] == "add":
            mine.append(" ".join(words[5:]))
        elif words[2] == "del" and not mine:
            raise ToolFailed("ip", 2, "no such rule")
        elif words[2] == "del":
            mine.pop()
        return "".join(f"{rule}\n" for rule in mine)


def test_nft_is_preferred_and_the_rules_are_there_once() -> None:
    machine = Machine("nft", "iptables", "ip")
    assert not metadata.in_place(machine.run)
    assert metadata.close(machine.run) == metadata.close(machine.run) == ""
    assert not any("iptables -w -A" in call or "rule add" in call for call in machine.calls)
    (rules,) = machine.tables
    assert metadata.in_place(machine.run)
    assert f"delete table inet {metadata.TABLE}" in rules
    for address in (metadata.IPV4, *metadata.IPV6):
        assert f"daddr {address} meta skuid != 0 tcp dport != 53 reject" in rules


def test_iptables_is_the_second_choice() -> None:
    machine = Machine("iptables", "ip6tables")
    assert metadata.close(machine.run) == metadata.close(machine.run) == ""
    assert machine.rules["iptables OUTPUT"] == [f"-j {metadata.CHAIN}"], "once"
    (rule,) = machine.rules[f"iptables {metadata.CHAIN}"]
    assert rule == f"-d {metadata.IPV4} -p tcp ! --dport 53 -m owner ! --uid-owner 0 -j REJECT"
    assert metadata.in_place(machine.run)
    machine.rules["iptables OUTPUT"].clear()
    assert not metadata.in_place(machine.run), "somebody flushed them"


def test_routing_rules_are_the_last_choice() -> None:
    machine = Machine("ip")
    assert not metadata.in_place(machine.run)
    assert metadata.close(machine.run) == metadata.close(machine.run) == ""
    assert [rule.split("dport ")[1] for rule in machine.rules["ip -4"]] == ["1-52 prohibit", "54-65534 prohibit"]
    assert metadata.in_place(machine.run)
    assert all(rule.startswith("uidrange 1-4294967294 to 169.254.169.254/32") for rule in machine.rules["ip -4"])


def test_without_any_tool_it_says_so() -> None:
    why, names = metadata.close(Machine().run), ["nft", "iptables", "ip"]
    assert [name for name in names if f"{name} is not installed" in why] == names
    assert isinstance(ToolMissing("nft"), NodeError)


def test_at_boot_it_is_closed_before_anything_of_users_and_after_what_flushes_rules() -> None:
    text = units.metadata_unit("/usr/bin/python3", "/opt/meshd-node/meshd-node.pyz")
    assert "ExecStart=/usr/bin/python3 /opt/meshd-node/meshd-node.pyz metadata" in text
    assert "Before=sysinit.target network-pre.target" in text
    assert "nftables.service" in text.split("After=")[1].splitlines()[0]


class Service(http.server.BaseHTTPRequestHandler):
    """A metadata service that has one page, or none."""

    page = ""
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == self.page else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("page", "status", "is_open"),
    [
        ("/", 200, True), ("/latest/user-data", 401, True), ("/computeMetadata/v1/instance/", 200, True),
        ("", 200, False), ("/", 404, False),
    ],
)  # fmt: skip
def test_a_container_that_may_make_no_rules_asks_whether_anything_is_served(
    page: str, status: int, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Service, "page", page)
    monkeypatch.setattr(Service, "status", status)
    with http.server.HTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        why = metadata.answers([("127.0.0.1", server.server_port)])
        server.shutdown()
        thread.join()
    assert bool(why) is is_open


def test_where_nothing_listens_nothing_is_open() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert metadata.answers([("127.0.0.1", free.getsockname()[1])]) == ""
