"""`meshctl scale` and `plan`: which pool is meant, whether it allows the target, and what would follow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from meshd import gpus
from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.api.faults import BadRequest, Refused, Unknown
from meshd.codes import RefusalCode, WarningCode
from meshd.daemon.head_api import plan_views, views
from meshd.daemon.head_api.state import HeadState
from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.desired import OPTIONS, Desired, Pool, Target, is_set, options_of, written
from meshd.model.machine import IN_SLURM, Machine, Phase
from meshd.model.observed import SlurmView, Snapshot
from meshd.plan.freeze import CURE, SUBJECT
from meshd.plan.guards import asks_first
from meshd.plan.placement import amount, node_gpus, unit_of, within
from meshd.plan.scale import supply_gpus
from meshd.provider_api import Offer

LOOK_TIMEOUT_S = 3.0


class ScaleService:
    """Answers PLAN, PREVIEW and SCALE.

    Every plan shown here comes from `MachineController.decide` and the newest snapshot: no step begins with it.

    Args:
        state: the journal, the sources and the last tick.
        look_at_slurm: reads Slurm now.
        look_at_key: reads the state of the auth key now.
    """

    def __init__(
        self,
        state: HeadState,
        *,
        look_at_slurm: Callable[[], Awaitable[object]],
        look_at_key: Callable[[], Awaitable[object]],
    ) -> None:
        self._state = state
        self._look_at_slurm = look_at_slurm
        self._look_at_key = look_at_key

    async def plan(self) -> s.PlanView:
        """What meshd would do now."""
        self._state.tick()
        return self._plan(self._state.desired(), self._state.snapshot())

    async def preview(self, request: s.ScaleRequest) -> s.PlanView:
        """What meshd would do after that request."""
        self._state.tick()
        desired, snapshot = self._state.desired(), self._state.snapshot()
        pool = chosen_pool(desired, request)
        target, dropped = self._target(pool, request, snapshot, "plan")
        view = self._plan_of_order(_with_target(desired, target), snapshot)
        return view.model_copy(
            update={
                "warnings": [*dropped, *view.warnings],
                "findings": [*_dropped_options(pool, dropped), *view.findings],
            }
        )

    async def scale(self, request: s.ScaleRequest, actor: Actor) -> s.ScaleAnswer:
        """Set a pool's target, unless it is a dry run."""
        self._state.tick()
        await self._look()
        journal, now = self._state.journal, self._state.clock.now()
        desired, snapshot = self._state.desired(), self._state.snapshot()
        pool = chosen_pool(desired, request)
        old = desired.target(pool)
        target, dropped = self._target(pool, request, snapshot, str(actor.user))
        # Somebody asks for machines now, so no cooldown holds the pool back: the plan is made as if all were lifted.
        lifted = replace(
            _with_target(desired, target),
            cooldowns=_of_other_pools(desired.cooldowns, pool),
            expired_cooldowns=_of_other_pools(desired.expired_cooldowns, pool),
        )
        view = self._plan_of_order(lifted, snapshot)
        machines = [m for m in journal.machines() if m.pool == pool.name]
        last_event_id = journal.last_event_id()
        target_id = None
        if not request.dry_run:
            held = {**desired.cooldowns, **desired.expired_cooldowns}
            kept = {**lifted.cooldowns, **lifted.expired_cooldowns}
            journal.lift_cooldowns(held.keys() - kept.keys())
            target_id = journal.set_target(
                target, f"{actor.user} sets the target of {pool.name} to {amount(request.gpus, pool)}", now
            ).id
            self._state.controller.wake()
        return s.ScaleAnswer(
            pool=pool.name, gpus_before=old.gpus if old else supply_gpus(machines), gpus=request.gpus,
            unit=unit_of(pool), target_id=target_id, at=now, last_event_id=last_event_id, plan=view,
            warnings=[*dropped, *view.warnings], findings=[*_dropped_options(pool, dropped), *view.findings],
            options=list(options_of(target)),
            asks=asks_first(view.usd_per_hour_before, view.usd_per_hour_after, len(view.removes), desired.guards),
            waiting_for_jobs=_waiting_for_jobs(machines, view, views.slurm_of(snapshot)),
        )  # fmt: skip

    async def _look(self) -> None:
        """Read what decides which machines go: a job may have begun since, or the auth key have died."""
        looks = [self._look_at_key()]
        if any(m.phase in IN_SLURM for m in self._state.journal.machines()):
            looks.append(self._look_at_slurm())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                await asyncio.gather(*looks)

    def _plan(self, desired: Desired, snapshot: Snapshot) -> s.PlanView:
        now = self._state.clock.now()
        decided = self._state.controller.decide(snapshot, now, desired)
        return plan_views.plan_view(decided, self._state.journal.machines(), snapshot, desired, now)

    def _plan_of_order(self, desired: Desired, snapshot: Snapshot) -> s.PlanView:
        """What would follow from somebody's order: while meshd is frozen, after a thaw."""
        view = self._plan(replace(desired, freeze=None), snapshot)
        if desired.freeze is None:
            return view
        text = f"{desired.freeze.words}: all this happens after a thaw"
        finding = s.PlanFinding(code=WarningCode.FROZEN, subject=SUBJECT, text=text, cure=CURE)
        warnings = [f"{text} ({CURE})", *view.warnings]
        return view.model_copy(update={"warnings": warnings, "findings": [finding, *view.findings]})

    def _target(self, pool: Pool, request: s.ScaleRequest, snapshot: Snapshot, by: str) -> tuple[Target, list[str]]:
        before, offers = self._state.journal.targets().get(pool.name), snapshot.known_offers
        return next_target(pool, request, before, offers, by=by, at=self._state.clock.now())


def _dropped_options(pool: Pool, texts: Sequence[str]) -> list[s.PlanFinding]:
    return [s.PlanFinding(code=WarningCode.OPTION_DROPPED, subject=pool.name, text=text) for text in texts]


def _with_target(desired: Desired, target: Target) -> Desired:
    return replace(desired, targets={**desired.targets, target.pool: target})


def _of_other_pools(cooldowns: Mapping[CooldownKey, Cooldown], pool: Pool) -> dict[CooldownKey, Cooldown]:
    return {key: cooldown for key, cooldown in cooldowns.items() if key.pool not in {"", pool.name}}


def _waiting_for_jobs(machines: Sequence[Machine], plan: s.PlanView, slurm: SlurmView | None) -> list[s.WaitingFor]:
    """The machines that leave only when their jobs have ended. `machines` are the pool's."""
    leaving = {row.subject for row in plan.steps if row.action == "remove"}
    leaving |= {m.name for m in machines if m.phase is Phase.DRAINING}
    return [
        s.WaitingFor(slot=m.slot, machine=m.name, jobs=list(slurm.running_on(m.slot)))
        for m in machines
        if slurm and m.name in leaving and slurm.running_on(m.slot)
    ]


def chosen_pool(desired: Desired, request: s.ScaleRequest) -> Pool:
    """The pool that a request is about: the one it names, or the only one that its GPU model fits.

    Raises:
        Unknown: there is no pool of that name.
        BadRequest: none is named, and not exactly one can be meant.
    """
    pools = desired.pools
    if request.pool is not None:
        if request.pool not in pools:
            known = ", ".join(pools) or "none: write a [pools.NAME] table into meshd.toml"
            raise Unknown(f"there is no pool {request.pool}", f"pools are: {known}", code=RefusalCode.NO_SUCH_POOL)
        return pools[request.pool]
    listed = ", ".join(f"{pool.name} ({pool.gpu or 'CPU only'})" for pool in pools.values())
    listed = listed or "none: write a [pools.NAME] table into meshd.toml"
    found = list(pools.values())
    if request.gpu:
        same = [pool for pool in found if pool.gpu == request.gpu]
        found = same or [pool for pool in found if pool.gpu and gpus.related(pool.gpu, request.gpu)]
        if not found:
            raise BadRequest(f"no pool has {request.gpu}", f"pools are: {listed}", code=RefusalCode.NO_POOL_HAS_GPU)
    if len(found) != 1:
        which = ", ".join(pool.name for pool in found) or listed
        raise BadRequest("say which pool to scale", f"--pool, one of: {which}", code=RefusalCode.POOL_NEEDED)
    return found[0]


def asked_target(
    pool: Pool, request: s.ScaleRequest, offers: Sequence[Offer], *, by: str, at: datetime | None
) -> Target:
    """The target that a request sets.

    Args:
        pool: as the settings have it.
        request: may narrow what the pool allows; only spot, pods and the overshoot may go beyond it.
        offers: all known ones: they say which zones a region has.
        by: who asks.
        at: when.

    Raises:
        BadRequest: the pool does not allow it; its cure says what the pool allows.
        Refused: the pool has too few slots.
    """
    _check_narrowing(pool, request, offers)
    target = Target(
        pool=pool.name, gpus=request.gpus, provider=request.provider or "",
        max_usd_per_gpu_hour=request.max_usd_per_gpu_hour, at=at, by=by, max_usd_per_hour=request.max_usd_per_hour,
        gpu=request.gpu if request.gpu and gpus.matches(pool.gpu, request.gpu) and request.gpu != pool.gpu else "",
        gpus_per_node=request.gpus_per_node, regions=request.regions, spot=request.spot or "", pods=request.pods or "",
        spread=request.spread, overshoot_max_gpus=request.overshoot_max_gpus,
    )  # fmt: skip
    _, most = node_gpus(pool, target)
    room = pool.max_nodes * max(most, 1)
    if request.gpus > room:
        raise Refused(
            f"{pool.name} has room for {amount(room, pool)}, not for {request.gpus}",
            f"raise pools.{pool.name}.max_nodes, then `systemctl reload meshd`",
            code=RefusalCode.NO_ROOM,
        )
    return target


def next_target(
    pool: Pool, request: s.ScaleRequest, before: Target | None, offers: Sequence[Offer], *, by: str, at: datetime | None
) -> tuple[Target, list[str]]:
    """The target that a request sets, with a warning for each option that is dropped.

    Options that the request does not name stay as they were, unless it resets them. An option that the pool no longer
    allows is dropped.

    Args:
        pool: as the settings have it.
        request: what the user asks for now.
        before: the present target; None: there is none.
        offers: all that is known.
        by: who asks.
        at: when.

    Raises:
        BadRequest, Refused: as `asked_target`.
    """
    kept = {} if request.reset or before is None else _kept(request, before)
    dropped: list[str] = []
    for field, value in list(kept.items()):
        try:
            _check_narrowing(pool, s.ScaleRequest.model_validate({"gpus": request.gpus, field: value}), offers)
        except BadRequest as error:
            dropped.append(f"{written(field)} of the former target is dropped: {error}")
            del kept[field]
    whole = request.model_copy(update=kept)
    return asked_target(pool, whole, offers, by=by, at=at), dropped


def _kept(request: s.ScaleRequest, before: Target) -> dict[str, object]:
    """The options of the present target that a request does not name."""
    unnamed = [field for field in OPTIONS if field not in request.model_fields_set]
    return {field: getattr(before, field) for field in unnamed if is_set(before, field)}


def _check_narrowing(pool: Pool, request: s.ScaleRequest, offers: Sequence[Offer]) -> None:
    own = f"pools.{pool.name}"
    if request.provider and request.provider not in pool.providers:
        raise BadRequest(
            f"{pool.name} does not rent from {request.provider}",
            f"its providers are: {', '.join(pool.providers)}",
            code=RefusalCode.OUTSIDE_OF_POOL,
        )
    if request.gpu and not gpus.related(pool.gpu, request.gpu):
        raise BadRequest(
            f"{pool.name} has {pool.gpu or 'CPU only'}, not {request.gpu}",
            f"{own}.gpu, or another --pool",
            code=RefusalCode.OUTSIDE_OF_POOL,
        )
    each, few, many = request.gpus_per_node, pool.gpus_per_node, pool.gpus_per_node_most
    if pool.cpu_only:
        few = many = 0
    if each is not None and not few <= each <= many:
        allowed = f"{few}" if few == many else f"{few} to {many}"
        raise BadRequest(
            f"{pool.name} has machines with {allowed} GPUs, not with {each}",
            f"{own}.gpus_per_node and gpus_per_node_max say so",
            code=RefusalCode.OUTSIDE_OF_POOL,
        )
    for place in request.regions if pool.regions else ():
        there = [offer for offer in offers if within(offer, (place,))]
        if place not in pool.regions and not any(within(offer, pool.regions) for offer in there):
            raise BadRequest(
                f"{pool.name} does not rent in {place}",
                f"its regions are: {', '.join(pool.regions)} ({own}.regions)",
                code=RefusalCode.OUTSIDE_OF_POOL,
            )
