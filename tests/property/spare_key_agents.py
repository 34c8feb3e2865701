"""Agents that hold spare keys, in simulated time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import SecretStr

from meshd.api.node_schema import ResultIn
from meshd.tailnet.keystore import key_id_of
from tests.property.rotation_sim import SimTailnet, sha


class Agents:
    """The machines' agents and their devices, which somebody deletes now and then."""

    def __init__(self, net: SimTailnet) -> None:
        self.net = net
        self.spare: dict[str, str] = {}
        self.used: set[str] = set()
        self.devices: dict[str, int] = {}
        self.lost: set[str] = set()
        self.came_back = 0

    async def ask(
        self, machine: str, verb: str, args: Any, timeout_s: float, *, first: bool = False
    ) -> ResultIn | None:
        """The verb spare_key; orders and answers may be lost."""
        assert verb == "spare_key"
        self.net.maybe_crash()
        if machine in self.lost or self.net.chance(0.1):
            return None
        self.spare[machine] = args["key"].get_secret_value()
        self.net.maybe_crash()
        if self.net.chance(0.1):
            return None
        return ResultIn(id="x", ok=True, data={"sha256": sha(self.spare[machine])})

    def device_deleted(self, machine: str) -> None:
        """It comes back with its spare, if that is good, and mostly takes the used one away; else it is lost."""
        secret = self.spare.get(machine, "")
        if not secret or not self.net.alive(secret):
            self.lost.add(machine)
            return
        key = self.net.keys[key_id_of(SecretStr(secret))]
        assert not key.reusable
        self.net.keys[key.id] = replace(key, valid=False)
        self.used.add(secret)
        self.devices[machine] = self.devices.get(machine, 0) + 1
        self.came_back += 1
        if self.net.rng.random() < 0.8:
            self.spare[machine] = ""
