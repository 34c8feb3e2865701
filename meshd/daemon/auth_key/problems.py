"""The tailnet's API. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.reporting import problem
from meshd.tailnet.off_api import OffApi


def tailnet_api(api: object) -> Iterable[ProblemView]:
    """A credential for the tailnet's API that cannot be used."""
    if isinstance(api, OffApi):
        text = f"the credential for the tailnet's API cannot be used: {api.reason}"
        yield problem(ProblemCode.TAILNET_API_OFF, "error", text, api.cure)
