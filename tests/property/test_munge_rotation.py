"""The rotation of the munge key in a fleet that fails: meshd is killed at any point, nodes vanish, the head says no."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from meshd.munge.rotation import (
    AT_ONE_MOMENT,
    HeadView,
    MungeFleet,
    MungeRotation,
    MungeStage,
    NodeView,
    begin,
    key_in_force,
    waits_for,
)
from meshd.munge.rotation_steps import (
    MakeKeys,
    MungeStep,
    PutNode,
    RestartSlurmd,
    StageHead,
    StageNode,
    SwitchHead,
    SwitchNode,
    SwitchTimings,
    abort,
    decide,
)
from tests.tiers import bounded

START = datetime(2026, 1, 1, tzinfo=UTC)
TIMINGS = SwitchTimings()
OLD, NEW = "old", "new"
TICK_S = 0.5
QUIET_TICKS = 1200


@dataclass
class Box:
    """A machine with munge: the head, or a node with its agent."""

    key: str = OLD
    staged: str = ""
    previous: str = ""
    due: tuple[str, datetime] | None = None

    def change(self, key: str) -> bool:
        """As the agent and the head's unit do: among the keys that lie there."""
        if self.key != key:
            if key not in {self.staged, self.previous}:
                return False
            self.previous, self.key = self.key, key
        return True


@dataclass
class Node(Box):
    online: bool = True
    down: bool = False
    slurmd: bool = True
    proved: bool = True


@dataclass
class Sim:
    """Everything outside meshd, and what meshd keeps on disk: `rotation` and `files`."""

    rotation: MungeRotation
    head: Box = field(default_factory=Box)
    asked: list[tuple[int, str, datetime | None]] = field(default_factory=list)
    """What the head's unit is still to do, one after the other: by which life of meshd, the key, and when to switch
    to it; without a moment it is to be staged."""
    life: int = 0
    nodes: dict[str, Node] = field(default_factory=dict)
    files: set[str] = field(default_factory=lambda: {OLD})
    now: datetime = START
    head_refuses: int = 0
    # What meshd has in memory of the head's unit; lost in a crash.
    told: HeadView = field(default_factory=HeadView)

    # -- meshd ----------------------------------------------------------------------------------------------------

    def fleet(self) -> MungeFleet:
        mine = [moment for life, _, moment in self.asked if life == self.life]
        moment = mine[0] if mine else self.told.moment
        head = replace(self.told, busy=bool(mine), moment=moment, works=True)
        views = {
            name: NodeView(
                name, name, node.online, node.down and not node.online, node.key if node.online else "",
                node.staged, node.proved, node.slurmd, busy=node.due is not None,
            )
            for name, node in self.nodes.items()
        }  # fmt: skip
        return MungeFleet(head, views, frozenset(self.files))

    def think(self, crash_after: int | None = None) -> None:
        """One round of the daemon, which is killed after `crash_after` effects."""
        effects = 0
        for _ in range(20):
            was = self.rotation
            decision = decide(was, self.fleet(), self.now, TIMINGS)
            self.judge_move(was, decision.rotation)
            if crash_after == 0:
                self.crash()
                return
            self.rotation = decision.rotation  # written down before anything is done
            for step in decision.steps:
                if effects == crash_after:
                    self.crash()
                    return
                effects += 1
                self.do(step)
            if self.rotation == was:
                return
        raise AssertionError(f"it does not settle at one time: {self.rotation}")

    def crash(self) -> None:
        self.life, self.told = self.life + 1, HeadView()

    def do(self, step: MungeStep) -> None:
        match step:
            case MakeKeys():
                self.files |= {OLD, NEW}
                self.rotation = replace(self.rotation, new=NEW)
            case StageHead(key):
                self.ask_head(key, None)
            case SwitchHead(key, at):
                self.ask_head(key, at)
            case StageNode(machine, key):
                self.nodes[machine].staged = key
            case SwitchNode(machine, key, at):
                self.nodes[machine].due = (key, at)
            case PutNode(machine, key):
                node = self.nodes[machine]
                node.previous, node.key = node.key, key
            case RestartSlurmd(machine):
                self.nodes[machine].slurmd = True

    def ask_head(self, key: str, at: datetime | None) -> None:
        if not any(life == self.life for life, _, _ in self.asked):  # one question at a time
            self.asked.append((self.life, key, at))
            self.serve()

    def serve(self) -> None:
        """The head's unit: a life of meshd that has ended hears no answer."""
        while self.asked:
            life, key, at = self.asked[0]
            if at is not None and self.now < at:
                return
            del self.asked[0]
            done = not self.refused()
            if done and at is None:
                self.head.staged = key
            elif done:
                done = self.head.change(key)
            if life == self.life:
                failure = "" if done else "no"
                self.told = HeadView(key=self.head.key, staged=self.head.staged, failure=failure, moment=at)

    def refused(self) -> bool:
        self.head_refuses = max(self.head_refuses - 1, 0)
        return self.head_refuses > 0

    # -- the fleet ------------------------------------------------------------------------------------------------

    def pass_time(self) -> None:
        self.now += timedelta(seconds=TICK_S)
        self.serve()
        for node in self.nodes.values():
            if node.online and node.due is not None and self.now >= node.due[1]:
                node.change(node.due[0])
                node.due = None
            node.down = not node.online
            node.proved = node.online and node.key == self.head.key

    def suffer(self, what: str, number: int) -> None:
        """One fault, or some time without any."""
        names = list(self.nodes)
        name = names[number % len(names)] if names else ""
        match what:
            case "refuse":
                self.head_refuses = number
            case "offline" if name:
                self.nodes[name].online, self.nodes[name].due = False, None
            case "online" if name:
                self.nodes[name].online = True
            case "join":
                key = key_in_force(self.rotation, self.told.key, self.now)
                self.nodes[f"n{self.now:%H%M%S%f}"] = Node(key=key, proved=False)
            case "leave" if name:
                del self.nodes[name]
            case "slurmd" if name:
                self.nodes[name].slurmd = False
            case "abort" if not self.rotation.ended:
                self.rotation = abort(self.rotation, self.now, TIMINGS, "root")
            case "waive" if name and not self.rotation.ended:
                self.rotation = replace(self.rotation, waived=(*self.rotation.waived, name))
            case "wait":
                for _ in range(number):
                    self.pass_time()
                    self.think()
                    self.judge()

    # -- what must hold -------------------------------------------------------------------------------------------

    def judge_move(self, was: MungeRotation, now: MungeRotation) -> None:
        if was.stage is MungeStage.STAGE and now.stage is MungeStage.SWITCH:
            for name, node in self.nodes.items():
                assert name in was.waived or node.staged == NEW or (not node.online and node.down)
            assert self.head.staged == NEW
        if now.stage is MungeStage.DONE and was.stage is not MungeStage.DONE:
            for name in now.taking_part:
                node = self.nodes.get(name)
                assert node is None or name in {*now.confirmed, *now.waived} or not node.online

    def judge(self) -> None:
        if self.rotation.ended:
            assert self.rotation.target in self.files
        else:
            assert OLD in self.files, "the old key is kept until the end"
        if self.rotation.stage not in AT_ONE_MOMENT and not self.asked:
            assert self.head.key == self.rotation.target, (
                "only inside SWITCH and RETURN may the head be of another mind"
            )
            assert key_in_force(self.rotation, self.told.key, self.now) == self.head.key
            for name in self.rotation.confirmed:
                node = self.nodes.get(name)
                assert node is None or node.key == self.head.key, "who has proved the key shares it with the head"


faults = st.one_of(
    st.tuples(st.just("crash"), st.integers(0, 6)),
    st.tuples(st.just("refuse"), st.integers(1, 3)),
    st.tuples(st.just("offline"), st.integers(0, 4)),
    st.tuples(st.just("online"), st.integers(0, 4)),
    st.tuples(st.just("join"), st.just(0)),
    st.tuples(st.just("leave"), st.integers(0, 4)),
    st.tuples(st.just("slurmd"), st.integers(0, 4)),
    st.tuples(st.just("abort"), st.just(0)),
    st.tuples(st.just("waive"), st.integers(0, 4)),
    st.tuples(st.just("wait"), st.integers(1, 250)),
)


@settings(max_examples=bounded(200, 10000))
@given(st.integers(0, 5), st.lists(faults, max_size=14))
def test_whatever_happens_all_share_a_key_in_the_end(count: int, history: list[tuple[str, int]]) -> None:
    sim = Sim(begin("r1", OLD, START, "root"), nodes={f"m{i}": Node() for i in range(count)})
    for what, number in history:
        sim.suffer(what, number)
        sim.think(number if what == "crash" else None)
        sim.judge()
        sim.pass_time()
        sim.judge()
    # The faults stop. Nodes that are away stay away.
    sim.head_refuses = 0
    for _ in range(QUIET_TICKS):
        sim.think()
        sim.judge()
        sim.pass_time()
        if sim.rotation.ended:
            sim.think()
            break
    assert sim.rotation.ended, f"a dead end: {sim.rotation}, waits for {waits_for(sim.rotation, sim.fleet())}"
    assert sim.head.key == (NEW if sim.rotation.stage is MungeStage.DONE else OLD)
    left_behind = {
        name for name, node in sim.nodes.items()
        if node.online and node.key != sim.head.key and name not in sim.rotation.waived
    }  # fmt: skip
    assert not left_behind
