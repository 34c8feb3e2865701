"""The logs of one machine, also of one that failed or is gone."""

from __future__ import annotations

from meshd.api import schema as s
from meshd.codes import EventKind
from meshd.daemon.head_api.machines import MachineService
from meshd.daemon.head_api.state import HeadState
from meshd.daemon.machine_logs import MachineLogs
from meshd.redaction import redact
from meshd.store.events import EventFilter

REPORTS_MAX = 20
REPORTS = (EventKind.PROBLEM.value, EventKind.FAILURE.value, EventKind.REFUSED.value)


class LogService:
    """Answers LOGS.

    Args:
        state: the journal.
        machines: knows machines by their names and slots.
        logs: reads them.
    """

    def __init__(self, state: HeadState, machines: MachineService, logs: MachineLogs) -> None:
        self._state = state
        self._machines = machines
        self._logs = logs

    async def logs(self, query: s.LogsQuery) -> s.LogsView:
        """The last lines.

        Raises:
            Unknown: there is no such machine or slot.
            Refused: the slot never had a machine.
        """
        machine = self._state.machine_store.get(self._machines.name_of(query.machine, also_gone=True))
        found = await self._logs.read(machine, query.lines, query.part)
        events = self._state.journal.events_like(EventFilter((machine.name,), REPORTS), -1, REPORTS_MAX)
        return s.LogsView(
            machine=machine.name, slot=machine.slot, provider=machine.provider, phase=machine.phase.value,
            problem=machine.failure or machine.problem,
            logs=[s.LogRow(part=one.part, source=one.source.value, at=one.at, text=one.text) for one in found.logs],
            reports=[s.ReportRow(at=event.at, text=redact(event.text)) for event in events],
            notes=list(found.notes),
        )  # fmt: skip
