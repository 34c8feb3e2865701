"""What `meshctl test -o json` prints: how fast nodes are together, and a verdict about each."""

from __future__ import annotations

from meshd.api.schema.base import Document, Part


class AllReduceRow(Part):
    """All-reduces of a group of nodes.

    Attributes:
        latency_us: of 8 bytes.
        gb_per_s: bus bandwidth of a large tensor, as nccl-tests computes it.
        right: all sums were right.
    """

    nodes: list[str]
    latency_us: float = 0.0
    gb_per_s: float = 0.0
    right: bool = True


class NodeVerdict(Part):
    """A verdict about a node.

    Attributes:
        verdict: `ok`; `slow`: its best pair has less than half of the usual bandwidth; `wrong_sum`; `failed`;
            `no_torch`: no PyTorch there; `silent`: it reported nothing.
        device: GPU model, or `cpu`.
        gb_per_s: of its best pair, or of all nodes together where no pairs were measured.
    """

    node: str
    verdict: str
    text: str = ""
    device: str = ""
    torch: str = ""
    gb_per_s: float = 0.0


class AllReduceView(Document):
    """The result of a test.

    Attributes:
        groups: all nodes together first, then pairs.
    """

    nodes: list[NodeVerdict] = []
    groups: list[AllReduceRow] = []
