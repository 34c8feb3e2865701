"""Builds the parts for the start of jobs: slurmctld's programs on the head, and messages to who waits."""

from __future__ import annotations

from dataclasses import dataclass

from meshd.daemon.agents import AgentQueues
from meshd.daemon.controller import Controller
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.observe.source import Source
from meshd.daemon.slurm.bell import Bell
from meshd.daemon.slurm.power_saving_report import PowerSavingReporter
from meshd.daemon.slurm.prolog_gate import JobUsers, PrologGate
from meshd.daemon.slurm.terminal_notes import TerminalNotes
from meshd.daemon.waiting import WaitingJobs
from meshd.model.observed import SlurmView
from meshd.runtime.clock import Clock
from meshd.slurm.client import SlurmClient
from meshd.store.journal import Journal


@dataclass(frozen=True, slots=True)
class HeadProgramParts:
    """The parts.

    Attributes:
        controllers: hear the programs, let jobs start, and tell who waits at a terminal.
        reporter: reports whether Slurm has the settings, and whether meshd is heard.
    """

    controllers: tuple[Controller, ...]
    reporter: PowerSavingReporter


def build_head_programs(
    live: LiveSettings,
    journal: Journal,
    agents: AgentQueues,
    slurm: Source[SlurmView],
    client: SlurmClient,
    waiting: WaitingJobs,
    users: JobUsers,
    clock: Clock,
) -> HeadProgramParts:
    """Build the parts. For the arguments see PrologGate and TerminalNotes."""
    directory = live.settings.cluster.socket.parent
    gate = PrologGate(directory, live, journal, agents, slurm, slurm.hurry, client, clock, users)
    bell = Bell(directory, slurm.hurry, gate.heard, clock)
    reporter = PowerSavingReporter(live, slurm, client, bell.path)
    return HeadProgramParts((bell, gate, TerminalNotes(waiting, client, clock)), reporter)
