"""The agent reads its cloud's notices, whatever the metadata service answers."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.node.meshd_node.node import Node
from deploy.node.meshd_node.notices import (
    Answer,
    Notice,
    NoticeWatch,
    Service,
    Unreadable,
    read_instance_action,
    read_maintenance,
    read_preempted,
    read_rebalance,
)

WITHIN_S = 20.0
ACTION = '{"action": "terminate", "time": "2026-03-01T12:02:00Z"}'
ENDS_AT = 1772366520.0


def etag_of(text: str) -> str:
    return f"{abs(hash(text)):x}"


class Metadata(http.server.BaseHTTPRequestHandler):
    """Answers like both services. `server.pages`: (status, text) by path; `server.token`: the one that is valid."""

    protocol_version = "HTTP/1.1"
    server: Any

    def do_PUT(self) -> None:
        self.server.tokens += 1
        self.server.token = f"token-{self.server.tokens}"
        self.answer(200, self.server.token)

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self.server.asked.append(self.path)
        if path.startswith("/latest") and self.headers.get("X-aws-ec2-metadata-token") != self.server.token:
            self.answer(401, "Unauthorized")
            return
        if path.startswith("/computeMetadata") and self.headers.get("Metadata-Flavor") != "Google":
            self.answer(403, "Missing header")
            return
        if "last_etag" in query:
            etag = query.rpartition("last_etag=")[2]
            while etag_of(self.server.pages[path][1]) == etag and not self.server.over.wait(0.02):
                pass
        status, text = self.server.pages.get(path, (404, "Not Found"))
        if text == "drip":
            self.drip()
            return
        self.answer(status, text)

    def drip(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "4000")
        self.end_headers()
        while not self.server.over.wait(0.1):
            try:
                self.wfile.write(b"x")
            except OSError:
                return

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("ETag", etag_of(text))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


class House:
    """The service, and an agent's watch that reads it."""

    def __init__(self) -> None:
        self.server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
        self.server.daemon_threads = True
        vars(self.server).update(pages={}, asked=[], tokens=0, token="none", over=threading.Event())
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.state = SimpleNamespace(spot_cloud="")
        self.moves = 0

    def watch(self, cloud: str) -> NoticeWatch:
        self.state.spot_cloud = cloud

        def moved() -> None:
            self.moves += 1

        address = ("127.0.0.1", self.server.server_address[1])
        found = NoticeWatch(cast("Node", SimpleNamespace(state=self.state)), moved, lambda: Service(address), 0.05)
        found.start()
        return found


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.state.spot_cloud = "none"
    made.server.over.set()
    made.server.shutdown()
    made.server.server_close()
    for thread in threading.enumerate():
        if thread.name in {"spot notices", "maintenance notices"}:
            thread.join(WITHIN_S)
            assert not thread.is_alive()


def until(look: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN_S
    while not look():
        assert time.monotonic() < end
        time.sleep(0.01)


def kinds(watch: NoticeWatch) -> list[str] | None:
    found = watch.report()
    return None if found is None else [one["kind"] for one in found]


def test_ec2s_notices_come_and_go_and_a_token_that_expired_is_replaced(house: House) -> None:
    watch = house.watch("aws")
    until(lambda: kinds(watch) == [])
    house.server.pages["/latest/meta-data/events/recommendations/rebalance"] = (
        200, '{"noticeTime": "2026-03-01T11:50:00Z"}',
    )  # fmt: skip
    until(lambda: kinds(watch) == ["rebalance"])
    house.server.token = "another"
    house.server.pages["/latest/meta-data/spot/instance-action"] = (200, ACTION)
    until(lambda: kinds(watch) == ["preempted", "rebalance"])
    (preempted, rebalance) = watch.report() or []
    assert abs(preempted["ends_in_s"] - max(-86400.0, min(86400.0, ENDS_AT - time.time()))) < 5
    assert rebalance["ends_in_s"] is None
    assert house.server.tokens == 2
    house.server.pages.clear()
    until(lambda: kinds(watch) == [])
    until(lambda: house.moves >= 4)  # the head is told of each, a moment after the watch itself knows


def test_gces_notices_come_by_a_question_that_is_held(house: House) -> None:
    pages = house.server.pages
    pages["/computeMetadata/v1/instance/preempted"] = (200, "FALSE")
    pages["/computeMetadata/v1/instance/maintenance-event"] = (200, "NONE")
    watch = house.watch("gce")
    until(lambda: kinds(watch) == [])
    until(lambda: sum("last_etag" in one for one in house.server.asked) == 2)
    pages["/computeMetadata/v1/instance/preempted"] = (200, "TRUE")
    until(lambda: kinds(watch) == ["preempted"])
    (notice,) = watch.report() or []
    assert 20 < notice["ends_in_s"] <= 30
    pages["/computeMetadata/v1/instance/maintenance-event"] = (200, "TERMINATE_ON_HOST_MAINTENANCE")
    until(lambda: sorted(kinds(watch) or []) == ["maintenance", "preempted"])
    pages["/computeMetadata/v1/instance/preempted"] = (200, "FALSE")
    until(lambda: kinds(watch) == ["maintenance"])


@pytest.mark.parametrize(
    ("status", "text"), [(500, ""), (200, "drip"), (200, "<html>"), (200, '{"action": "dance"}'), (200, "{" * 9000)]
)
def test_what_cannot_be_read_is_not_known_and_takes_back_no_notice(house: House, status: int, text: str) -> None:
    page = "/latest/meta-data/spot/instance-action"
    house.server.pages[page] = (200, ACTION)
    watch = house.watch("aws")
    until(lambda: kinds(watch) == ["preempted"])
    house.server.pages[page] = (status, text)
    asked = len(house.server.asked)
    until(lambda: len(house.server.asked) > asked + 2)
    assert kinds(watch) == ["preempted"]


def test_nothing_is_known_without_a_service_or_on_a_machine_that_is_not_spot(house: House) -> None:
    assert house.watch("").report() is None
    assert house.server.asked == []
    with pytest.raises(Unreadable):
        Service(("127.0.0.1", 1)).ask_ec2("/latest")


@given(st.builds(Answer, st.sampled_from([200, 404, 401, 500]), st.text() | st.just(ACTION) | st.just("TRUE")))
def test_any_answer_is_a_notice_or_none_or_unreadable(answer: Answer) -> None:
    for read in (
        read_instance_action, read_rebalance, lambda one: read_preempted(one, 5.0),
        lambda one: read_maintenance(one, 5.0),
    ):  # fmt: skip
        try:
            found = read(answer)
        except Unreadable:
            continue
        assert found is None or isinstance(found, Notice)
