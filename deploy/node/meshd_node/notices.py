"""Reads the cloud's notice that it will take this spot machine back, at its metadata service.

EC2 (docs.aws.amazon.com, "Spot Instance interruption notices"): `spot/instance-action` is 404, or the time of the end,
about 2 min ahead; Amazon recommends to look every 5 s. `events/recommendations/rebalance` may come earlier: the risk is
higher, and nothing ends. GCE (docs.cloud.google.com, "Spot VMs"): `instance/preempted` becomes TRUE at most
30 s before the end; `instance/maintenance-event` TERMINATE_ON_HOST_MAINTENANCE an hour before a host with GPUs stops.
Only root reaches the service (`metadata`). Whatever it answers, the agent goes on: what cannot be read is not known.
"""

from __future__ import annotations

import calendar
import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .backoff import jitter
from .console import say
from .metadata import IPV4
from .node import Node

LOOK_S = 5.0
NOT_JOINED_S = 0.5
ANSWER_S = 3.0
HOLD_S = 60.0
"""How long GCE's service may hold a question for a change."""
HOLD_SLACK_S = 10.0
AT_ONCE_S = 1.0
"""The least time between two questions, also where the service does not hold them."""
ANSWER_MAX = 4096
TOKEN_S = 21600
GCE_LEAD_S = 30.0
MAINTENANCE_LEAD_S = 3600.0
ENDS_IN_MAX_S = 86400.0
"""The head refuses larger values (meshd/api/node_schema.py)."""

INSTANCE_ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"


class Unreadable(Exception):
    """The service did not answer, or not as documented: nothing is known."""


class Notice(NamedTuple):
    """A notice: `kind` is preempted, maintenance or rebalance; `ends_at` by this machine's clock, None: not told."""

    kind: str
    ends_at: float | None


class Answer(NamedTuple):
    """What the service answered."""

    status: int
    text: str
    etag: str = ""


class Service:
    """The metadata service.

    Args:
        address: (host, port).
    """

    def __init__(self, address: tuple[str, int] = (IPV4, 80)) -> None:
        self._address = address
        self._token = ""

    def ask(self, path: str, headers: Mapping[str, str], timeout_s: float = ANSWER_S, method: str = "GET") -> Answer:
        """One question. Raises Unreadable without an answer in time."""
        link = http.client.HTTPConnection(*self._address, timeout=timeout_s)
        deadline = time.monotonic() + timeout_s
        try:
            link.request(method, path, headers=dict(headers))
            response = link.getresponse()
            text = b""
            while len(text) < ANSWER_MAX and (part := response.read1(ANSWER_MAX - len(text))):
                text += part
                if time.monotonic() > deadline:
                    raise Unreadable(f"{path}: the answer does not end")
            return Answer(response.status, text.decode("ascii", "replace"), response.getheader("ETag") or "")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreadable(f"{path}: {error or type(error).__name__}") from None
        finally:
            link.close()

    def ask_ec2(self, path: str) -> Answer:
        """One question with a token of version 2; a token that has expired is replaced once. Raises Unreadable."""
        for _ in range(2):
            if not self._token:
                ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
                got = self.ask("/latest/api/token", ttl, method="PUT")
                if got.status != 200 or not got.text.isprintable() or not got.text:
                    raise Unreadable(f"the service gives no token ({got.status})")
                self._token = got.text
            answer = self.ask(path, {"X-aws-ec2-metadata-token": self._token})
            if answer.status != 401:
                return answer
            self._token = ""
        raise Unreadable(f"{path}: the service refuses its own token")

    def ask_gce(self, path: str, etag: str) -> Answer:
        """One question; with an ETag it is held until the value is another. Raises Unreadable."""
        query = f"?wait_for_change=true&timeout_sec={HOLD_S:.0f}&last_etag={etag}" if etag.isalnum() else ""
        timeout_s = HOLD_S + HOLD_SLACK_S if query else ANSWER_S
        return self.ask(path + query, {"Metadata-Flavor": "Google"}, timeout_s)


def read_instance_action(answer: Answer) -> Notice | None:
    """PURE: EC2's notice; None while there is none. Raises Unreadable."""
    if answer.status == 404:
        return None
    found = _document(answer)
    if found.get("action") not in ("terminate", "stop", "hibernate"):
        raise Unreadable(f"{INSTANCE_ACTION}: an unknown action")
    return Notice("preempted", _time(found.get("time")))


def read_rebalance(answer: Answer) -> Notice | None:
    """PURE: EC2's recommendation; None while there is none. Raises Unreadable."""
    if answer.status == 404:
        return None
    _time(_document(answer).get("noticeTime"))
    return Notice("rebalance", None)


def read_preempted(answer: Answer, now: float) -> Notice | None:
    """PURE: GCE's notice; None while there is none. Raises Unreadable."""
    return Notice("preempted", now + GCE_LEAD_S) if _word(answer, "FALSE", "TRUE") == "TRUE" else None


def read_maintenance(answer: Answer, now: float) -> Notice | None:
    """PURE: GCE's notice that a host stops; None while there is none. Raises Unreadable."""
    words = ("NONE", "MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE")
    return Notice("maintenance", now + MAINTENANCE_LEAD_S) if _word(answer, *words) == words[2] else None


def _word(answer: Answer, *known: str) -> str:
    word = answer.text.strip()
    if answer.status != 200 or word not in known:
        raise Unreadable(f"the service answered {answer.status}, and none of {', '.join(known)}")
    return word


def _document(answer: Answer) -> dict[str, Any]:
    try:
        found = json.loads(answer.text) if answer.status == 200 else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Unreadable(f"the service answered {answer.status}, and no document")
    return found


def _time(text: object) -> float:
    try:
        return float(calendar.timegm(time.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ")))
    except (ValueError, OverflowError):
        raise Unreadable(f"the service told a time that is none: {str(text)[:40]!r}") from None


class NoticeWatch:
    """Threads beside the agent's loop, on a machine of which the head says that it is a spot machine.

    Args:
        node: this machine.
        moved: called when there is something new to report.
        service: the metadata service.
        look_s: the pause between two looks, where the service holds no question.
    """

    def __init__(
        self, node: Node, moved: Callable[[], None], service: Callable[[], Service] = Service, look_s: float = LOOK_S
    ) -> None:
        self._node = node
        self._moved = moved
        self._service = service
        self._look_s = look_s
        self._lock = threading.Lock()
        self._found: dict[str, Notice | None] = {}
        self._said: dict[str, str] = {}
        self.version = 0
        """Grows with each change of what `report` says."""

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="spot notices", daemon=True).start()

    def report(self) -> list[dict[str, Any]] | None:
        """What the head is told; None while nothing is known, or this is no spot machine."""
        with self._lock:
            if not self._found:
                return None
            notices = [one for one in self._found.values() if one is not None]
        return [{"kind": one.kind, "ends_in_s": _ends_in_s(one.ends_at, time.time())} for one in notices]

    def _run(self) -> None:
        pause = threading.Event()
        while not self._node.state.spot_cloud:
            pause.wait(NOT_JOINED_S)
        if self._node.state.spot_cloud == "gce":
            maintenance = threading.Thread(
                target=self._hold, args=(MAINTENANCE, read_maintenance), name="maintenance notices", daemon=True
            )
            maintenance.start()
            self._hold(PREEMPTED, read_preempted)
        service = self._service()
        while self._node.state.spot_cloud == "aws":
            self.look(INSTANCE_ACTION, lambda: read_instance_action(service.ask_ec2(INSTANCE_ACTION)))
            self.look(REBALANCE, lambda: read_rebalance(service.ask_ec2(REBALANCE)))
            pause.wait(self._look_s)

    def _hold(self, path: str, read: Callable[[Answer, float], Notice | None]) -> None:
        """Follow one of GCE's values as long as the head says that this is a spot machine there."""
        service, pause, etag = self._service(), threading.Event(), ""

        def ask() -> Notice | None:
            nonlocal etag
            answer = service.ask_gce(path, etag)
            notice = read(answer, time.time())
            etag = answer.etag
            return notice

        while self._node.state.spot_cloud == "gce":
            if self.look(path, ask):
                pause.wait(AT_ONCE_S if etag else self._look_s)
            else:
                etag = ""
                pause.wait(self._look_s * jitter())

    def look(self, path: str, ask: Callable[[], Notice | None]) -> bool:
        """Look once. What cannot be read stays as it was; False then."""
        try:
            notice = ask()
        except Unreadable as error:
            if self._said.get(path) != str(error):
                self._said[path] = str(error)
                say(f"whether the cloud takes this machine back is not known: {error}")
            return False
        self._said.pop(path, None)
        with self._lock:
            before = self._found.get(path)
            if notice is not None and before is not None and notice.kind == before.kind and path != INSTANCE_ACTION:
                notice = before  # its end counts from when it was seen first
            news = before != notice
            first = path not in self._found
            self._found[path] = notice
            self.version += news or first
        if news:
            say(f"the cloud's notice: {notice.kind}" if notice else "the cloud has withdrawn its notice", urgent=True)
            self._moved()
        return True


def _ends_in_s(ends_at: float | None, now: float) -> float | None:
    return None if ends_at is None else max(-ENDS_IN_MAX_S, min(ENDS_IN_MAX_S, ends_at - now))
