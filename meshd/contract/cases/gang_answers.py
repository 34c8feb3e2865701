"""Wrong answers to the create call of a gang: no machine is lost from sight, and none has two names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from meshd.contract.cases.base import Cases, kinds
from meshd.contract.cases.gangs import MACHINES, launcher
from meshd.contract.faults import FaultKind
from meshd.contract.rig import Rig
from meshd.contract.steps import gang_request
from meshd.errors import NotFound, ProviderError, Uncertain
from meshd.provider_api import GangLauncher, GangRequest, Instance, InstanceState, Offer, Provider

WRONG_ANSWERS = (
    FaultKind.TOO_FEW, FaultKind.TOO_MANY, FaultKind.PART_REFUSED, FaultKind.NEVER_DONE, FaultKind.SHOWN_TWICE,
    FaultKind.OTHERS_SHOWN, FaultKind.UNTAGGED,
)  # fmt: skip
WRONG = kinds(*WRONG_ANSWERS)


class GangAnswerCases(Cases):
    """Whatever a cloud makes and answers: the answer, or the list, shows each machine, and all can be ended."""

    @WRONG
    async def test_no_machine_of_a_wrong_answer_is_out_of_sight(
        self, rig: Rig, provider: Provider, offer: Offer, kind: FaultKind
    ) -> None:
        gangs = launcher(provider)
        others = await gangs.launch_gang(gang_request(offer, 2, unique="z9y8x7"))
        rig.inject(kind, "launch")
        seen = {one.id: one for one in [*others, *await _answered(gangs, gang_request(offer, MACHINES))]}
        rig.advance(rig.boot_s + 1)
        await rig.settle()
        seen |= {one.id: one for one in await provider.list()}
        for instance in seen.values():
            with suppress(ProviderError):  # the cloud does not know it: it was never made
                await provider.terminate(instance)
        rig.advance(rig.end_s + 1)
        await rig.settle()
        assert [machine.token for machine in rig.machines() if machine.alive] == []

    @WRONG
    async def test_a_wrong_answer_gives_no_machine_two_names(
        self, rig: Rig, provider: Provider, offer: Offer, kind: FaultKind
    ) -> None:
        gangs, wanted = launcher(provider), gang_request(offer, MACHINES)
        others = await gangs.launch_gang(gang_request(offer, 2, unique="z9y8x7"))
        rig.inject(kind, "launch")
        made = await _answered(gangs, wanted)
        assert [one.token for one in made] in ([], list(wanted.tokens))
        assert len({one.id for one in [*made, *others]}) == len(made) + len(others)

    @WRONG
    async def test_the_same_call_after_a_wrong_answer_makes_nothing_twice(
        self, rig: Rig, provider: Provider, offer: Offer, kind: FaultKind
    ) -> None:
        gangs, wanted = launcher(provider), gang_request(offer, MACHINES)
        await gangs.launch_gang(gang_request(offer, 2, unique="z9y8x7"))
        rig.inject(kind, "launch")
        try:
            await gangs.launch_gang(wanted)
        except Uncertain:
            await _answered(rig.make(), wanted)
        except ProviderError:
            return  # whoever is refused gives the names up
        names = [machine.token for machine in rig.machines()]
        assert sorted(set(names)) == sorted(names)

    async def test_a_machine_that_was_never_made_is_not_there_for_ever(
        self, rig: Rig, provider: Provider, offer: Offer
    ) -> None:
        rig.inject(FaultKind.NEVER_DONE, "launch")
        made = await _answered(launcher(provider), gang_request(offer, MACHINES))
        rig.advance(rig.keep_s)
        await rig.settle()
        there = {one.id for one in await provider.list()}
        assert 0 < len(there) < MACHINES
        for instance in made:
            assert (instance.id in there) is await _is_there(provider, instance)


async def _answered(gangs: Provider | GangLauncher, wanted: GangRequest) -> Sequence[Instance]:
    """The machines of the answer; none when the call is refused, or has no clear answer."""
    assert isinstance(gangs, GangLauncher)
    try:
        return await gangs.launch_gang(wanted)
    except ProviderError:
        return ()


async def _is_there(provider: Provider, instance: Instance) -> bool:
    try:
        return (await provider.get(instance)).state is not InstanceState.GONE
    except NotFound:
        return False
