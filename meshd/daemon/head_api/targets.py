"""Where the exporters of nodes are, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from meshd.api.monitoring import EXPORTERS, ExporterTarget
from meshd.config import MetricsSettings
from meshd.daemon.live_settings import LiveSettings
from meshd.model.machine import Machine, Phase
from meshd.store.journal import Journal


def exporter_targets(machines: Iterable[Machine], settings: MetricsSettings) -> list[ExporterTarget]:
    """The exporters of the nodes that are READY, by slot. A node without GPUs has none for them."""
    ports = dict(zip(EXPORTERS, settings.exporter_ports, strict=True))
    ready = sorted((m for m in machines if m.phase is Phase.READY and m.tailnet_ip), key=lambda m: (m.pool, m.slot))
    return [
        ExporterTarget(name, f"{m.tailnet_ip}:{port}", _labels(m))
        for m in ready
        for name, port in ports.items()
        if port and (m.gpus or name == "node")
    ]


def _labels(m: Machine) -> dict[str, str]:
    return {
        "slot": m.slot,
        "pool": m.pool,
        "provider": m.provider,
        "region": m.region or m.offer.region,
        "instance_type": m.offer.instance_type,
    }


class Targets:
    """Calling it returns the targets of this moment.

    Args:
        journal: the machines.
        live: the settings: the exporters' ports.
    """

    def __init__(self, journal: Journal, live: LiveSettings) -> None:
        self._journal = journal
        self._live = live

    def __call__(self) -> list[ExporterTarget]:
        """All targets, by slot."""
        return exporter_targets(self._journal.machines(), self._live.settings.metrics)
