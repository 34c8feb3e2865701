"""Consoles, where the adapter shows them."""

from __future__ import annotations

import pytest

from meshd.contract.cases.base import Cases, kinds
from meshd.contract.faults import FaultKind
from meshd.contract.rig import Rig, does_not_apply
from meshd.contract.steps import running
from meshd.errors import AuthFailed, NotFound, ProviderError, Transient
from meshd.provider_api import Console, Instance, InstanceId, Provider


def shows_consoles(provider: Provider) -> Console:
    """The adapter, if it shows consoles."""
    if not isinstance(provider, Console):
        does_not_apply("it shows no consoles")
    return provider


class ConsoleCases(Cases):
    """`console` returns what a machine wrote, and changes nothing."""

    async def test_the_console_is_what_the_machine_wrote(self, rig: Rig, provider: Provider) -> None:
        shows = shows_consoles(provider)
        machine = await running(rig, provider)
        wrote = "meshd: stage 1 on grüß-dich\r\nKernel panic - not syncing\r\n"
        rig.write_console(machine.token, wrote)
        text = await shows.console(machine)
        assert text.replace("\r\n", "\n").endswith(wrote.replace("\r\n", "\n"))

    async def test_of_a_long_console_the_end_is_there(self, rig: Rig, provider: Provider) -> None:
        shows = shows_consoles(provider)
        machine = await running(rig, provider)
        rig.write_console(machine.token, "x" * 70 + "\n" + "y" * 100_000 + "\nthe end")
        text = await shows.console(machine)
        assert text.endswith("the end") and len(text) <= 1024 * 1024

    async def test_an_empty_console_is_no_error(self, rig: Rig, provider: Provider) -> None:
        shows = shows_consoles(provider)
        machine = await running(rig, provider)
        rig.write_console(machine.token, "")
        assert await shows.console(machine) == ""

    async def test_the_console_of_nobody(self, rig: Rig, provider: Provider) -> None:
        shows = shows_consoles(provider)
        machine = await running(rig, provider)
        nobody = InstanceId(machine.id[:-4] + "0000")
        with pytest.raises(NotFound):
            await shows.console(Instance(provider.name, nobody, "", machine.state, region=machine.region))

    @kinds(FaultKind.AUTH, FaultKind.ERROR_BEFORE, FaultKind.CUT_BEFORE, FaultKind.HTML)
    async def test_a_console_that_cannot_be_read(self, rig: Rig, provider: Provider, kind: FaultKind) -> None:
        shows = shows_consoles(provider)
        machine = await running(rig, provider)
        rig.inject(kind, "console")
        with pytest.raises(ProviderError) as caught:
            await shows.console(machine)
        assert isinstance(caught.value, AuthFailed if kind is FaultKind.AUTH else Transient)
        await shows.console(machine)
