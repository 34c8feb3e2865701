"""The daemon's parts for nodes, built as the daemon builds them, around what a test gives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from meshd.daemon.agents import AgentQueues
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.nodes.node_settings import NodeSettings
from meshd.daemon.nodes.service import HeadFacts
from meshd.daemon.nodes.tokens import MachineTokens
from meshd.daemon.nodes.wiring import NodeParts, build
from meshd.daemon.observe.agent_reports import NodeReports
from meshd.model.observed import SlurmView, Unavailable
from tests.live import live_settings
from tests.sources import fresh

HEAD = HeadFacts("lab", "127.0.0.1:6817", 1, 1, 2, 2, (), 25.0)


async def _no_task_prolog() -> str:
    return ""


def node_parts(store: MachineStore, **given: Any) -> NodeParts:
    """The parts; what the test does not give is left out, and may not be used."""
    ports: dict[str, Any] = {
        "tokens": MachineTokens(b"s" * 32),
        "agents": AgentQueues(),
        "reports": NodeReports(),
        "tailnet": SimpleNamespace(current=Unavailable("not read", store.now())),
        "slurm": fresh(lambda: SlurmView("24.11.5", {}, ())),
        "addresses": None,
        "whois": None,
        "munge": None,
        "munge_key": None,
        "node_steps": None,
        "providers": {"aws": SimpleNamespace(capabilities=SimpleNamespace(ends_itself=True))},
        "head": HEAD,
    }
    live = given.pop("live", None) or live_settings()
    ports.update(given)
    settings = NodeSettings(
        live, store.journal, ports["agents"], ports["reports"], store.clock, {}, task_prolog=_no_task_prolog
    )
    return build(live, store, **{"node_settings": settings, **ports})
