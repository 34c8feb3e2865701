"""From what somebody asks for to a pool's target: which pool is meant, and whether the pool allows it. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from meshd import gpus
from meshd.api import schema as s
from meshd.api.faults import BadRequest, Refused, Unknown
from meshd.model.desired import Desired, Pool, Target
from meshd.plan.grow import amount
from meshd.plan.placement import node_gpus, within
from meshd.plan.target_options import OPTIONS, is_set, written
from meshd.provider_api import Offer


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
            raise Unknown(f"there is no pool {request.pool}", f"pools are: {known}")
        return pools[request.pool]
    listed = ", ".join(f"{pool.name} ({pool.gpu or 'CPU only'})" for pool in pools.values())
    listed = listed or "none: write a [pools.NAME] table into meshd.toml"
    found = list(pools.values())
    if request.gpu:
        same = [pool for pool in found if pool.gpu == request.gpu]
        found = same or [pool for pool in found if pool.gpu and gpus.related(pool.gpu, request.gpu)]
        if not found:
            raise BadRequest(f"no pool has {request.gpu}", f"pools are: {listed}")
    if len(found) != 1:
        which = ", ".join(pool.name for pool in found) or listed
        raise BadRequest("say which pool to scale", f"--pool, one of: {which}")
    return found[0]


def asked_target(
    pool: Pool, request: s.ScaleRequest, offers: Sequence[Offer], *, by: str, at: datetime | None
) -> Target:
    """The target that a request sets.

    Args:
        pool: as the settings have it.
        request: may narrow what the pool allows, and never widens it, but for spot and the overshoot.
        offers: all that is known: they tell which zones are in which region.
        by: who asks.
        at: when.

    Raises:
        BadRequest: it asks for what the pool does not allow; says what it does.
        Refused: the pool has not so many slots.
    """
    _check_narrowing(pool, request, offers)
    target = Target(
        pool=pool.name, gpus=request.gpus, provider=request.provider or "",
        max_usd_per_gpu_hour=request.max_usd_per_gpu_hour, at=at, by=by, max_usd_per_hour=request.max_usd_per_hour,
        gpu=request.gpu if request.gpu and gpus.matches(pool.gpu, request.gpu) and request.gpu != pool.gpu else "",
        gpus_per_node=request.gpus_per_node, regions=request.regions, spot=request.spot or "", spread=request.spread,
        overshoot_max_gpus=request.overshoot_max_gpus,
    )  # fmt: skip
    _, most = node_gpus(pool, target)
    room = pool.max_nodes * max(most, 1)
    if request.gpus > room:
        raise Refused(
            f"{pool.name} has room for {amount(room, pool)}, not for {request.gpus}",
            f"raise pools.{pool.name}.max_nodes, then `systemctl reload meshd`",
        )
    return target


def next_target(
    pool: Pool, request: s.ScaleRequest, before: Target | None, offers: Sequence[Offer], *, by: str, at: datetime | None
) -> tuple[Target, list[str]]:
    """The target that a request sets, and what is told about options of the one before.

    Options that the request does not name hold on, unless it resets them. One that the pool does not allow any more is
    dropped, and told.

    Args:
        pool: as the settings have it.
        request: what is asked for now.
        before: what somebody set before; None for nothing.
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
            dropped.append(f"{written(field)} of the target before is dropped: {error}")
            del kept[field]
    whole = request.model_copy(update=kept)
    return asked_target(pool, whole, offers, by=by, at=at), dropped


def _kept(request: s.ScaleRequest, before: Target) -> dict[str, object]:
    """The options of the target before that a request leaves as they are."""
    unnamed = [field for field in OPTIONS if field not in request.model_fields_set]
    return {field: getattr(before, field) for field in unnamed if is_set(before, field)}


def _check_narrowing(pool: Pool, request: s.ScaleRequest, offers: Sequence[Offer]) -> None:
    own = f"pools.{pool.name}"
    if request.provider and request.provider not in pool.providers:
        raise BadRequest(
            f"{pool.name} does not rent from {request.provider}", f"its providers are: {', '.join(pool.providers)}"
        )
    if request.gpu and not gpus.related(pool.gpu, request.gpu):
        raise BadRequest(
            f"{pool.name} has {pool.gpu or 'CPU only'}, not {request.gpu}", f"{own}.gpu, or another --pool"
        )
    each, few, many = request.gpus_per_node, pool.gpus_per_node, pool.gpus_per_node_most
    if pool.cpu_only:
        few = many = 0
    if each is not None and not few <= each <= many:
        allowed = f"{few}" if few == many else f"{few} to {many}"
        raise BadRequest(
            f"{pool.name} has machines with {allowed} GPUs, not with {each}",
            f"{own}.gpus_per_node and gpus_per_node_max say so",
        )
    for place in request.regions if pool.regions else ():
        there = [offer for offer in offers if within(offer, (place,))]
        if place not in pool.regions and not any(within(offer, pool.regions) for offer in there):
            raise BadRequest(
                f"{pool.name} does not rent in {place}", f"its regions are: {', '.join(pool.regions)} ({own}.regions)"
            )
