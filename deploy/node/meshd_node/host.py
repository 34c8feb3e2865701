"""The agent of an owned machine, for its whole stay in the cluster: it polls for what the machine should be.

`free`: nothing of a node is on it. `node`: it is the node of one machine of the cluster, by the same agent as any
other. `sleep`: free, and then asleep. `evict`: all of meshd is taken off. The head says what should be, and says it
again; this agent goes there from wherever the machine is, also after a cut of power at any point.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from . import evict, host_node
from .backoff import Backoff
from .console import say
from .errors import HeadRefused, HeadUnreachable, Interrupted, NodeError
from .files import read_json
from .headlink import HeadLink
from .node import Node
from .tools import run

POLL_SLACK_S = 15.0
HOLD_MAX_S = 40.0
"""The head takes a machine for away that it has not heard of for 60 s."""
SPACING_S = 0.2
SAME_SPACING_S = 2.0
"""The head answers at once while the machine is on its way to what it should be."""
RETRY_FIRST_S, RETRY_MAX_S = 0.2, 10.0
AGAIN_S = 10.0
"""Pause after work that failed."""
FORGOTTEN_S = 3600.0
"""A head that does not know this machine for so long has forgotten it: its journal is not away for an hour."""
SLEEP_S = 60.0
UNKNOWN = "unknown_token"


@dataclass(frozen=True)
class Goal:
    """What the head wants: see meshd/api/host_schema.py."""

    order: str = ""
    machine: str = ""
    join: dict[str, Any] = field(default_factory=dict, repr=False)
    sleep_command: tuple[str, ...] = ()
    forgotten: bool = False


class Host:
    """The two threads of the agent: one polls, and one does what the head wants.

    Args:
        node: the machine.
        config: /var/lib/meshd-host/host.json.
        leave: becomes another program, when the machine is evicted.
        monotonic: seconds.
        sleep: pauses, in seconds.
    """

    def __init__(
        self,
        node: Node,
        config: dict[str, Any],
        leave: Callable[[list[str]], None] = host_node.become,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._node = node
        self._token = str(config["token"])
        self._hold_s = min(float(config.get("poll_hold_s") or 25.0), HOLD_MAX_S)
        self._heads = [str(head) for head in config["heads"]]
        self._port = int(config["port"])
        self._link = HeadLink(self._heads, self._port)
        self._leave, self._monotonic, self._sleep = leave, monotonic, sleep
        self._changed = threading.Condition()
        self._goal = Goal()
        self._follows = ""
        self._state, self._machine = host_node.state(node.paths)
        self._problem = ""
        self._version = 0
        self._unknown_since: float | None = None
        self._over = False
        self._last_said = ""

    def run(self) -> int:
        """Run until the machine is evicted. The exit code."""
        threading.Thread(target=self._work, name="work", daemon=True).start()
        backoff = Backoff(RETRY_FIRST_S, RETRY_MAX_S)
        while not self._over:
            began = self._monotonic()
            try:
                spacing_s = SPACING_S if self._poll() else SAME_SPACING_S
                backoff.reset()
                self._last_said = ""
                pause_s = began + spacing_s - self._monotonic()
            except Interrupted:
                pause_s = 0.0
            except HeadRefused as error:
                self._say_once(f"the head refused: {error}")
                self._count_unknown(error)
                pause_s = backoff.next_s()
            except HeadUnreachable as error:
                self._say_once(str(error))
                pause_s = backoff.next_s()
            if not self._over:
                self._sleep(max(pause_s, 0.0))
        self._link.close()
        return 0

    # -- polls ----------------------------------------------------------------------------------------------------

    def _poll(self) -> bool:
        """Poll once. Returns whether the head wants something new."""
        with self._changed:
            told, body = self._version, {
                "state": self._state, "machine": self._machine, "problem": self._problem[:1000],
                "order": self._follows, "hold_s": self._hold_s,
            }  # fmt: skip
        answer = self._link.call(
            "POST", "/v1/hosts/poll", self._token, body, self._hold_s + POLL_SLACK_S,
            outdated=lambda: self._over or self._version != told,
        )  # fmt: skip
        self._unknown_since = None
        if self._version != told:
            return True  # it answers what is no longer so: ask again
        return self._take(answer if isinstance(answer, dict) else {})

    def _take(self, answer: dict[str, Any]) -> bool:
        order, join = str(answer.get("order") or ""), answer.get("join")
        if order not in ("free", "node", "sleep", "evict") or (order == "node" and not isinstance(join, dict)):
            raise HeadUnreachable("the head's answer to the poll cannot be used")
        goal = Goal(
            order, str(answer.get("machine") or ""), join if isinstance(join, dict) else {},
            tuple(str(word) for word in answer.get("sleep_command") or ()),
        )  # fmt: skip
        with self._changed:
            self._follows = order
            new = (goal.order, goal.machine) != (self._goal.order, self._goal.machine)
            if new:
                say(f"the head wants: {order} {goal.machine}".rstrip())
            self._goal = goal
            self._changed.notify_all()
        return new

    def _count_unknown(self, error: HeadRefused) -> None:
        """A head that has forgotten this machine cannot evict it any more."""
        if error.code != UNKNOWN:
            self._unknown_since = None
            return
        now_s = self._monotonic()
        if self._unknown_since is None:
            self._unknown_since = now_s
        if now_s - self._unknown_since >= FORGOTTEN_S:
            say("the head has forgotten this machine: meshd is taken off", urgent=True)
            with self._changed:
                self._goal = Goal("evict", forgotten=True)
                self._changed.notify_all()

    # -- work -----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        done: Goal | None = None
        while not self._over:
            with self._changed:
                self._changed.wait_for(lambda done=done: self._goal.order and self._goal != done, AGAIN_S)  # type: ignore[misc]
                goal = self._goal
            if not goal.order:
                continue
            try:
                self._go(goal)
                self._is(problem="")
                done = goal
            except (NodeError, OSError) as error:
                self._say_once(str(error))
                self._is(problem=str(error) or type(error).__name__)
                done = None
                self._sleep(AGAIN_S if goal == self._goal else 0.0)

    def _go(self, goal: Goal) -> None:
        """Go from where the machine is to where it should be."""
        on = host_node.kept(self._node.paths)
        if on and (on.leaving or goal.order != "node" or on.machine != goal.machine):
            self._is("leaving", on.machine)
            host_node.take_off(self._node)
        if goal.order == "node":
            if host_node.kept(self._node.paths) is None:
                self._is("joining", goal.machine)
            with closing(HeadLink(self._heads, self._port)) as link:
                host_node.put_on(self._node, link, self._token, goal.join)
            self._is("node", goal.machine)
            return
        self._is("free", "")
        if goal.order == "sleep":
            self._fall_asleep(goal)
        elif goal.order == "evict":
            with closing(HeadLink(self._heads, self._port)) as link:
                evict.evict(self._node, None if goal.forgotten else link, self._token, self._leave)
            self._over = True
            self._link.interrupt()

    def _fall_asleep(self, goal: Goal) -> None:
        """Run the command, and say that the machine is awake when it is again, or has not slept at all."""
        slept_s, until_s = _slept_s(), self._monotonic() + SLEEP_S
        say(f"going to sleep: {' '.join(goal.sleep_command)}", urgent=True)
        result = run(goal.sleep_command, SLEEP_S, check=False)
        problem = "" if result.returncode == 0 else f"the sleep command ended with {result.returncode}: {result.stderr}"
        while _slept_s() < slept_s + 1.0 and self._monotonic() < until_s and self._goal == goal:
            self._sleep(1.0)
        with self._changed:
            self._goal, self._follows, self._version = Goal(), "", self._version + 1
        self._link.interrupt()
        if problem:
            raise NodeError(problem)

    def _is(self, state: str = "", machine: str = "", problem: str | None = None) -> None:
        """Note how the machine is, and tell it the head at once."""
        with self._changed:
            was = (self._state, self._machine, self._problem)
            if state:
                self._state, self._machine = state, machine
            if problem is not None:
                self._problem = problem
            if was == (self._state, self._machine, self._problem):
                return
            self._version += 1
        self._link.interrupt()

    def _say_once(self, text: str) -> None:
        if text != self._last_said:
            self._last_said = text
            say(text)


def _slept_s() -> float:
    """For how long this machine has slept since it booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def serve(node: Node) -> int:
    """Run the agent with what the enrolment has saved. The exit code."""
    config = read_json(node.paths.host_file)
    if not config.get("heads") or not config.get("token"):
        say(f"{node.paths.host_file} names no head: this machine is no host", urgent=True)
        return 1
    return Host(node, config).run()
