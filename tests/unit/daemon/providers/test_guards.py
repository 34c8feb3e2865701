"""What stands around every provider: deadlines, the breaker, the meter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshd.config import Settings, TimingSettings
from meshd.daemon.providers.breaker import COOL_DOWN_MAX_S, COOL_DOWN_S, FAILURES_MAX, Admission, Breaker
from meshd.daemon.providers.circuit import Circuit
from meshd.daemon.providers.guarded import GuardedProvider, Operation
from meshd.daemon.providers.guards import Guards
from meshd.errors import AuthFailed, InvalidRequest, NoCapacity, NotFound, RateLimited, Transient, Uncertain
from meshd.obs.metrics import Metrics
from meshd.price_list import PriceList
from meshd.provider_api import (
    Console,
    Instance,
    InstanceId,
    InstanceState,
    LaunchRequest,
    Offer,
    PriceBook,
    Provider,
    ProviderCapabilities,
)
from tests.live import live_settings
from tests.unit.daemon.small import HandClock
from tests.unit.worlds import AWS, NOW, OFFER

MACHINE = Instance(AWS, InstanceId("i-1"), "lab-h100-1-abcde1", InstanceState.BOOTING, "r1")
REQUEST = LaunchRequest("lab-h100-1-abcde1", "lab", OFFER, "")


class Scripted:
    """A cloud that answers, fails or hangs as it is told, and counts."""

    name = AWS
    capabilities = ProviderCapabilities(spot=True)

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fault: Exception | None = None
        self.hang = False
        self.closed = False

    async def _answer(self, operation: str) -> None:
        self.asked.append(operation)
        if self.hang:
            await asyncio.Event().wait()
        if self.fault is not None:
            raise self.fault

    async def offers(self) -> Sequence[Offer]:
        await self._answer("offers")
        return [OFFER]

    async def launch(self, request: LaunchRequest) -> Instance:
        await self._answer("launch")
        return MACHINE

    async def get(self, instance: Instance) -> Instance:
        await self._answer("get")
        return instance

    async def list(self) -> Sequence[Instance]:
        await self._answer("list")
        return [MACHINE]

    async def terminate(self, instance: Instance) -> None:
        await self._answer("terminate")

    async def check(self) -> str:
        await self._answer("check")
        return "account 1"

    async def aclose(self) -> None:
        self.closed = True


class World:
    def __init__(self) -> None:
        self.clock, self.cloud, self.metrics = HandClock(), Scripted(), Metrics()
        self.live = live_settings()
        self.guards = Guards(self.live, self.metrics, self.clock)
        self.provider = self.guards.around(self.cloud)

    @property
    def breaker(self) -> Breaker:
        return self.guards.breakers()["aws"]

    async def break_it(self) -> None:
        self.cloud.fault = Transient("the cloud burns", provider="aws", operation="list")
        for _ in range(FAILURES_MAX):
            with pytest.raises(Transient, match="burns"):
                await self.provider.list()
        self.cloud.asked.clear()

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def world() -> World:
    return World()


CALLS: dict[Operation, Callable[[Provider], Awaitable[object]]] = {
    "offers": lambda p: p.offers(),
    "launch": lambda p: p.launch(REQUEST),
    "get": lambda p: p.get(MACHINE),
    "list": lambda p: p.list(),
    "terminate": lambda p: p.terminate(MACHINE),
    "check": lambda p: p.check(),
}


# -- a provider with guards is a provider


async def test_everything_goes_through(world: World) -> None:
    answers = [await call(world.provider) for call in CALLS.values()]
    assert answers == [[OFFER], MACHINE, MACHINE, [MACHINE], None, "account 1"]
    assert world.cloud.asked == list(CALLS)
    assert (world.provider.name, world.provider.capabilities) == (AWS, ProviderCapabilities(spot=True))
    await world.provider.aclose()
    assert world.cloud.closed


async def test_guards_stand_in_their_order() -> None:
    seen: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        async def call(self, operation: Operation, ask: Callable[[], Awaitable[object]]) -> object:
            seen.append(f"{self.name} {operation}")
            return await ask()

    await GuardedProvider(Scripted(), [Named("outer"), Named("inner")]).list()  # type: ignore[list-item]
    assert seen == ["outer list", "inner list"]


class WithPrices(Scripted):
    """A cloud that tells its prices too."""

    async def fetch_prices(self) -> PriceList:
        await self._answer("fetch_prices")
        return PriceList(as_of=NOW, usd_per_hour={})


async def test_a_price_book_stays_one(world: World) -> None:
    cloud = WithPrices()
    provider = world.guards.around(cloud)
    assert isinstance(provider, PriceBook)
    assert not isinstance(world.provider, PriceBook)
    assert await provider.fetch_prices() == PriceList(as_of=NOW, usd_per_hour={})
    cloud.fault = AuthFailed("pricing:GetProducts is missing")
    for _ in range(FAILURES_MAX):
        with pytest.raises(AuthFailed):
            await provider.fetch_prices()
    assert not world.breaker.is_open, "prices come from another API"


class WithConsole(Scripted):
    async def console(self, instance: Instance) -> str:
        await self._answer("console")
        return "x" * 100_000 + "\r\nend\x1b[31m"


class WithBoth(WithPrices, WithConsole):
    pass


async def test_a_console_stays_one_and_is_bounded(world: World) -> None:
    for cloud in (WithConsole(), WithBoth()):
        provider = world.guards.around(cloud)
        assert isinstance(provider, Console)
        assert isinstance(provider, PriceBook) is isinstance(cloud, PriceBook)
        text = await provider.console(MACHINE)
        assert len(text) <= 64 * 1024 and text.endswith("\nend [31m")
        cloud.fault = AuthFailed("ec2:GetConsoleOutput is missing")
        for _ in range(FAILURES_MAX):
            with pytest.raises(AuthFailed):
                await provider.console(MACHINE)
        assert not world.breaker.is_open, "nothing else needs that permission"
    assert not isinstance(world.provider, Console)
    assert not isinstance(world.guards.around(WithPrices()), Console)


# -- deadlines


@pytest.mark.parametrize("operation", list(CALLS))
async def test_late_call(world: World, operation: Operation) -> None:
    world.live.settings = Settings(timing=TimingSettings(provider_timeout_s=0.01, launch_timeout_s=0.02))
    world.cloud.hang = True
    kind, words = (Uncertain, "0.02 s") if operation == "launch" else (Transient, "0.01 s")
    with pytest.raises(kind, match=words) as caught:
        await CALLS[operation](world.provider)
    assert (caught.value.provider, caught.value.operation) == ("aws", operation)


# -- the breaker


async def test_after_faults_in_a_row_the_cloud_is_left_alone(world: World) -> None:
    await world.break_it()
    for operation in ("offers", "list", "get", "launch"):
        with pytest.raises(Transient, match="the cloud burns") as caught:
            await CALLS[operation](world.provider)  # type: ignore[index]
        assert caught.value.retry_after_s == COOL_DOWN_S
    assert world.cloud.asked == []


async def test_a_termination_is_never_refused_and_tells_nothing(world: World) -> None:
    await world.break_it()
    with pytest.raises(Transient, match="burns"):
        await world.provider.terminate(MACHINE)
    world.cloud.fault = None
    await world.provider.terminate(MACHINE)
    assert world.cloud.asked == ["terminate", "terminate"]
    assert world.breaker.is_open


async def test_who_asks_the_doctor_gets_the_clouds_own_word(world: World) -> None:
    await world.break_it()
    before = world.breaker.retry_after_s(world.clock.monotonic_s())
    with pytest.raises(Transient, match="burns"):
        await world.provider.check()
    assert world.breaker.retry_after_s(world.clock.monotonic_s()) == before, "a look puts nothing off"
    world.cloud.fault = None
    await world.provider.check()
    assert not world.breaker.is_open


async def test_one_probe_and_only_a_read(world: World) -> None:
    await world.break_it()
    world.clock.t_s += COOL_DOWN_S
    with pytest.raises(Transient) as caught:
        await world.provider.launch(REQUEST)
    assert caught.value.retry_after_s is not None and world.cloud.asked == []
    world.cloud.hang, world.cloud.fault = True, None
    probe = asyncio.create_task(world.provider.list())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    with pytest.raises(Transient):
        await world.provider.offers()
    assert world.cloud.asked == ["list"]
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    world.cloud.hang = False
    assert await world.provider.list() == [MACHINE], "a probe that was given up is not forgotten: the next call is one"
    await world.provider.launch(REQUEST)


async def test_failed_probes_are_further_and_further_apart(world: World) -> None:
    await world.break_it()
    waits: list[float] = []
    for _ in range(6):
        waits.append(world.breaker.retry_after_s(world.clock.monotonic_s()))
        world.clock.t_s += waits[-1]
        with pytest.raises(Transient, match="the cloud burns"):
            await world.provider.list()
    assert waits == [10, 20, 40, 80, COOL_DOWN_MAX_S, COOL_DOWN_MAX_S]


@pytest.mark.parametrize("error", [NotFound("no"), InvalidRequest("no"), NoCapacity("no")])
async def test_a_refusal_is_an_answer(world: World, error: Exception) -> None:
    for fault in (Transient("x"), error) * FAILURES_MAX:
        world.cloud.fault = fault
        with pytest.raises(type(fault)):
            await world.provider.get(MACHINE)
    assert not world.breaker.is_open


async def test_a_rate_limit_tells_nothing(world: World) -> None:
    world.cloud.fault = RateLimited("slow down", retry_after_s=3)
    for _ in range(2 * FAILURES_MAX):
        with pytest.raises(RateLimited):
            await world.provider.list()
    assert not world.breaker.is_open
    await world.break_it()
    world.clock.t_s += COOL_DOWN_S
    world.cloud.fault = RateLimited("slow down")
    for _ in range(2):
        with pytest.raises(RateLimited):
            await world.provider.list()
    assert world.breaker.is_open


async def test_launches_that_fail_open_nothing_but_refused_credentials_do(world: World) -> None:
    for fault in (Transient("not sent"), Uncertain("cut")):
        world.cloud.fault = fault
        for _ in range(FAILURES_MAX):
            with pytest.raises(type(fault)):
                await world.provider.launch(REQUEST)
    assert not world.breaker.is_open
    world.cloud.fault = AuthFailed("key revoked")
    for _ in range(FAILURES_MAX):
        with pytest.raises(AuthFailed):
            await world.provider.launch(REQUEST)
    assert world.breaker.is_open


async def test_a_fault_of_our_own_is_no_probe_lost(world: World) -> None:
    circuit = Circuit("aws", world.clock)
    guarded = GuardedProvider(world.cloud, [circuit])
    circuit.state = Breaker(FAILURES_MAX, "why", COOL_DOWN_S, -COOL_DOWN_S)
    world.cloud.fault = KeyError("a fault in an adapter")
    with pytest.raises(KeyError):
        await guarded.list()
    assert circuit.state.is_open
    assert not circuit.state.probing


EVENTS = st.lists(st.tuples(st.sampled_from(["read", "launch", "good", "bad", "lost"]), st.floats(0, 200)), max_size=60)


@given(EVENTS)
def test_the_breaker_never_sticks(events: list[tuple[str, float]]) -> None:
    """Whatever happens: one probe at a time, a bounded cool-down, and after it a read may always go out."""
    breaker, now_s, out = Breaker(), 0.0, 0
    for kind, passed_s in events:
        now_s += passed_s
        if kind in ("read", "launch"):
            breaker, admission = breaker.admit(now_s, may_probe=kind == "read")
            out += admission is Admission.PROBE
            assert not (breaker.is_open and kind == "launch" and admission is not Admission.REFUSE)
        elif kind == "good":
            breaker, out = breaker.answered(), 0
        elif kind == "bad":
            breaker = breaker.failed("why", now_s, probe=out > 0)
            out = 0 if not breaker.probing else out
        else:
            breaker, out = breaker.untold(), 0
        assert out <= 1
        assert breaker.is_open or breaker.failures < FAILURES_MAX
        assert 0 <= breaker.retry_after_s(now_s) <= COOL_DOWN_MAX_S
    free, admission = breaker.untold().admit(now_s + COOL_DOWN_MAX_S, may_probe=True)
    assert admission is not Admission.REFUSE
    assert not free.answered().is_open


# -- the meter


async def test_calls_are_counted_by_how_they_end(world: World) -> None:
    await world.provider.list()
    world.cloud.fault = NoCapacity("none")
    with pytest.raises(NoCapacity):
        await world.provider.launch(REQUEST)
    world.cloud.fault = KeyError("ours")
    with pytest.raises(Transient):
        await world.provider.offers()
    calls = {
        (s.labels["operation"], s.labels["outcome"]): s.value
        for family in world.metrics.registry.collect()
        for s in family.samples
        if s.name == "meshd_provider_calls_total" and s.value
    }
    assert world.value("meshd_provider_calls_total", provider="aws", operation="list", outcome="auth_failed") == 0
    assert calls == {("list", "ok"): 1, ("launch", "no_capacity"): 1, ("offers", "fault"): 1}
    assert world.value("meshd_provider_call_seconds_count", provider="aws", operation="list") == 1


async def test_what_is_refused_is_no_call_and_what_hangs_is_in_flight(world: World) -> None:
    await world.break_it()
    with pytest.raises(Transient):
        await world.provider.list()
    count = world.value("meshd_provider_calls_total", provider="aws", operation="list", outcome="transient")
    assert count == FAILURES_MAX
    world.cloud.hang = True
    ending = asyncio.create_task(world.provider.terminate(MACHINE))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert world.value("meshd_provider_calls_in_flight", provider="aws", operation="terminate") == 1
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)
    assert world.value("meshd_provider_calls_in_flight", provider="aws", operation="terminate") == 0
    assert world.value("meshd_provider_calls_total", provider="aws", operation="terminate", outcome="cancelled") == 1
