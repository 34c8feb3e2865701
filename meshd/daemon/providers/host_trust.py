"""Providers whose machines may run on hosts of strangers: root on a host is root on every node, through munge."""

from __future__ import annotations

from collections.abc import Mapping

from meshd.api.schema import CheckRow
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.reporting import ok, warn
from meshd.provider_api import Provider

NAME = CheckName.HOST_TRUST


def check(providers: Mapping[str, Provider]) -> CheckRow:
    """The row of `meshctl doctor`."""
    foreign = sorted(name for name, provider in providers.items() if provider.capabilities.foreign_hosts)
    if not foreign:
        return ok(NAME, "every provider rents machines on hosts of its own")
    text = (
        f"{', '.join(foreign)} may rent on hosts of strangers, who can read the munge key there: with it they are root "
        "on every node of the cluster"
    )
    cure = "rent there only what strangers may have; for runpod, leave `community` out of providers.runpod.clouds"
    return warn(NAME, ProblemCode.PROVIDER_HOSTS_FOREIGN, text, cure)
