"""What a machine of one GPU brings when it joins."""

from __future__ import annotations

from datetime import UTC, datetime

from meshd.model.hardware import GpuFact, NodeFacts, NodeShape
from meshd.provider_api import Offer, ProviderName

START = datetime(2026, 1, 1, tzinfo=UTC)
OFFER = Offer(ProviderName("aws"), "r1", "", "gpu.1", "h100-sxm", 1, 80, 8, 65536, 2.0)
GPU = GpuFact(0, "NVIDIA H100 80GB HBM3", "GPU-1", 81559, "/dev/nvidia0")
FACTS = NodeFacts(NodeShape(8, 1, 1, 8, 1, 65536), (GPU,), "24.11.5", "1.102.5", "0.1.0", "debian 13", "x86_64", 0.0)
