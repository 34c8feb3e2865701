"""Tells each receiver what is to be told, beside the ticks: a slow receiver delays nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from typing import Final

import structlog

from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.api.faults import Unknown
from meshd.codes import CheckName, EventKind, ProblemCode, RefusalCode
from meshd.config.models import NotifySettings
from meshd.daemon.controller import Controller
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.reporting import Check, ok, problem, warn
from meshd.errors import ConfigError, StoreError
from meshd.model.machine import Machine
from meshd.notify.message import Message, bounded
from meshd.notify.receiver import DeliveryFailed, Receiver, open_all, open_receiver
from meshd.plaintext import counted
from meshd.plan.notices import (
    NOTHING,
    Alert,
    Notice,
    Told,
    alert_key,
    delivered,
    due,
    failed,
    looked,
    merged,
    restarted,
)
from meshd.runtime.clock import Clock
from meshd.store.notices import ToldReceivers

log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 2.0
WRITTEN_AGAIN_S: Final = 10.0
"""The pause after the journal could not be written."""
EVENTS_KEPT: Final = 20
"""Deliveries of one receiver that wait for the journal; of older ones there is only the log."""
FAILURES_SHOWN: Final = 2
"""After so many failed deliveries in a row a receiver is a problem: one may be chance."""


class NotificationController(Controller):
    """Looks at the problems, decides for each receiver, and delivers, one message at a time to each.

    What it remembers decides, also while the journal cannot be written: then it goes on, and only its next life may
    repeat a message, with the same id.

    Args:
        live: the settings.
        told: what receivers were told.
        problems: all that `meshctl status` shows; None while meshd has not looked around yet.
        machines: those of the journal, for notices of spot machines.
        clock: time.
    """

    name = "notifications"

    def __init__(
        self,
        live: LiveSettings,
        told: ToldReceivers,
        problems: Callable[[], Iterable[s.ProblemView] | None],
        machines: Callable[[], Iterable[Machine]],
        clock: Clock,
    ) -> None:
        super().__init__(clock)
        self._live = live
        self._store = told
        self._problems = problems
        self._machines = machines
        self._told = {name: restarted(one) for name, one in told.all().items()}
        self._settings: dict[str, NotifySettings] | None = None
        self._receivers: dict[str, Receiver] = {}
        self._off: dict[str, ConfigError] = {}
        self._on_the_way: dict[str, asyncio.Task[None]] = {}
        self._unwritten: dict[str, list[tuple[str, datetime]]] = {}
        """The receivers of which the journal does not know the newest, each with its events."""
        self._unwritten_why = ""
        self._write_again_s = 0.0

    async def reconcile(self) -> float | None:
        """Look, decide, and begin deliveries; none is waited for."""
        if self._settings != self._live.settings.notify:
            await self._open()
        self._end_deliveries()
        written = self._write()
        if not self._settings:
            return None if written else LOOK_EVERY_S
        shown = self._problems()
        if shown is None:
            return LOOK_EVERY_S
        seen, now = [_alert(one) for one in shown if one.code != ProblemCode.NOTIFY_FAILS], self._clock.now()
        seen += [_spot(one) for one in self._machines() if one.preempted_at is not None]
        for name, receiver in self._receivers.items():
            # A receiver's own failure is told by the others.
            alerts = merged([*seen, *(alert for other, alert in self._failing() if other != name)])
            before = self._told.get(name, NOTHING)
            after = looked(before, alerts, receiver.settings.rules, now)
            self._told[name] = after
            if _gist(before) != _gist(after):
                self._unwritten.setdefault(name, [])
            if name not in self._on_the_way:
                notice = due(after, receiver.settings.rules, now, name)
                if notice is not None:
                    task = asyncio.create_task(self._deliver(receiver, notice), name=f"notify {name}")
                    self._on_the_way[name] = task
        self._write()
        return LOOK_EVERY_S

    async def _open(self) -> None:
        """Read the settings and the secrets again."""
        self._settings = dict(self._live.settings.notify)
        self._receivers, self._off = await asyncio.to_thread(open_all, self._settings)
        for name in [one for one in self._told if one not in self._settings]:
            del self._told[name]
            self._unwritten.pop(name, None)

    def _end_deliveries(self) -> None:
        """Forget the deliveries that have ended. Raises what is a fault of meshd's own, after it was noted."""
        faults = []
        for name, task in [(name, task) for name, task in self._on_the_way.items() if task.done()]:
            del self._on_the_way[name]
            if not task.cancelled() and (error := task.exception()) is not None:
                faults.append(error)
                text = "meshd failed while it sent the message: journalctl -u meshd"
                self._remember(name, failed(self._told.get(name, NOTHING), text, self._clock.now()))
        if faults:
            raise faults[0]

    def _write(self) -> bool:
        """Bring the journal up to what is remembered; whether it is. After a failure there is a pause."""
        gone = [one for one in self._store.all() if one not in (self._settings or {})]
        if not gone and not self._unwritten:
            return True
        now_s = self._clock.monotonic_s()
        if self._unwritten_why and now_s < self._write_again_s:
            return False
        try:
            for name in gone:
                self._store.forget(name)
            for name, events in list(self._unwritten.items()):
                while events:
                    self._store.put(name, self._told[name], *events[0])
                    del events[0]
                self._store.put(name, self._told[name])
                del self._unwritten[name]
        except StoreError as error:
            if not self._unwritten_why:
                log.error("notices_not_written", receivers=[*gone, *self._unwritten], reason=str(error))
            self._unwritten_why, self._write_again_s = str(error), now_s + WRITTEN_AGAIN_S
            return False
        self._unwritten_why = ""
        return True

    async def _deliver(self, receiver: Receiver, notice: Notice) -> None:
        """Send one message, and remember what came of it."""
        name = receiver.name
        try:
            message = Message(self._live.settings.cluster.name, name, notice)
            try:
                words = await receiver.send(message, self._clock.now())
            except DeliveryFailed as error:
                log.warning("notice_not_delivered", receiver=name, id=notice.id, reason=str(error))
                self._remember(name, failed(self._told.get(name, NOTHING), str(error), self._clock.now()))
                return
            log.info("notice_delivered", receiver=name, id=notice.id, answer=words)
            now = self._clock.now()
            after = delivered(self._told.get(name, NOTHING), notice, now)
            self._remember(name, after, f"{name} was told of {counted(len(notice.items), 'problem')}: {message.title}")
        finally:
            self.wake()

    def _remember(self, name: str, told: Told, event: str = "") -> None:
        if name in self._receivers:  # it may have left the settings meanwhile
            self._told[name] = told
            events = self._unwritten.setdefault(name, [])
            if event:
                events.append((event, self._clock.now()))
                del events[:-EVENTS_KEPT]
            self._write()

    async def test(self, request: s.NotifyTestRequest, actor: Actor) -> s.NotifyTestAnswer:
        """Send a test to one receiver or all, at the same time, and tell what each answered."""
        tables = self._live.settings.notify
        if request.receiver and request.receiver not in tables:
            raise Unknown(
                f"there is no receiver {request.receiver}",
                f"those in the settings: {', '.join(tables) or 'none'}", code=RefusalCode.NO_SUCH_RECEIVER,
            )  # fmt: skip
        names = [request.receiver] if request.receiver else list(tables)
        log.info("notify_test", by=str(actor.user), receivers=names)
        rows = await asyncio.gather(*(self._try(name, tables[name]) for name in names))
        return s.NotifyTestAnswer(rows=list(rows))

    async def _try(self, name: str, table: NotifySettings) -> s.NotifyTestRow:
        now = self._clock.now()
        message = Message(
            self._live.settings.cluster.name, name, Notice(f"test-{now.timestamp():.6f}", now, ()), test=True
        )
        try:
            receiver = await asyncio.to_thread(open_receiver, name, table)
            return s.NotifyTestRow(receiver=name, ok=True, text=await receiver.send(message, now))
        except (DeliveryFailed, ConfigError) as error:
            return s.NotifyTestRow(receiver=name, ok=False, text=str(error))

    def problems(self) -> Iterable[s.ProblemView]:
        """Receivers that are not told what they should be, and a journal that does not know what they were told."""
        if self._unwritten_why:
            text = f"what receivers of notifications were told is not written down: {self._unwritten_why}"
            cure = "free the disk: if meshd is started again before, it repeats messages"
            yield problem(ProblemCode.NOTIFY_NOT_WRITTEN, "warning", text, cure)
        for _, alert in self._failing():
            yield problem(ProblemCode.NOTIFY_FAILS, "warning", alert.text, alert.cure)

    def _failing(self) -> Iterable[tuple[str, Alert]]:
        for name, error in self._off.items():
            yield name, _failure(name, f"the receiver {name} is told nothing: {error}")
        for name in self._receivers:
            told = self._told.get(name, NOTHING)
            if told.failures >= FAILURES_SHOWN:
                text = f"the receiver {name} took none of the last {told.failures} messages: {told.fault}"
                yield name, _failure(name, text)

    def checks(self) -> Iterable[Check]:
        """One for all receivers; it sends nothing."""
        if self._live.settings.notify:
            yield Check(CheckName.NOTIFY, self._check)

    async def _check(self) -> s.CheckRow:
        failing = [alert.text for _, alert in self._failing()]
        if failing:
            return warn(CheckName.NOTIFY, ProblemCode.NOTIFY_FAILS, "; ".join(failing), "`meshctl notify test`")
        return ok(CheckName.NOTIFY, f"{counted(len(self._receivers), 'receiver')}; `meshctl notify test` tries them")

    async def aclose(self) -> None:
        """End deliveries: what was not taken is sent again by the next life of meshd, with the same id."""
        self._write_again_s = 0.0
        self._write()
        tasks = list(self._on_the_way.values())
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


def _alert(view: s.ProblemView) -> Alert:
    key = alert_key(view.code, view.pool, view.machine)
    return bounded(
        Alert(key, view.code, view.severity, view.text, view.cure, view.since, view.pool, view.machine)
    )  # fmt: skip


def _spot(machine: Machine) -> Alert:
    """That a cloud takes a machine back: nobody must act, and who waits for its jobs may want to know."""
    kind = EventKind.SPOT_NOTICE.value
    text = f"the cloud takes {machine.slot} back at {machine.preempted_at:%Y-%m-%d %H:%M} UTC; meshd replaces it"
    cure = f"nothing; `meshctl explain {machine.slot}` shows its jobs"
    key = alert_key(kind, machine.pool, machine.name)
    return bounded(Alert(key, kind, "warning", text, cure, None, machine.pool, machine.name))


def _failure(name: str, text: str) -> Alert:
    code = ProblemCode.NOTIFY_FAILS.value
    return bounded(
        Alert(alert_key(code, about=name), code, "warning", text, f"correct it, then `meshctl notify test {name}`")
    )  # fmt: skip


def _gist(told: Told) -> object:
    """What is worth a write: texts that change alone are not."""
    return {
        key: (one.seen_at, one.clear_at, one.told_at, one.told_count, one.alert.count)
        for key, one in told.entries.items()
    }
