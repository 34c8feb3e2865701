"""`meshctl scale`: how many GPUs a pool shall have."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.api.schema import OffersQuery, PlanView, ScaleAnswer, ScaleOutcome
from meshd.cli import render
from meshd.cli.client import Head
from meshd.cli.exits import CliError, Exit, QuietError, interrupted
from meshd.cli.params import Whole, duration
from meshd.cli.render_plan import scale
from meshd.cli.session import Session, confirm, output_option, print_json, say
from meshd.cli.wish import Wish, wish_options
from meshd.model.words import counted

EXAMPLES = """\b
Examples:
  meshctl scale --gpus 8 --dry-run                   what would be rented, and the price
  meshctl scale --gpus 8 --wait                      shows the price, asks, and stays until all are ready
  meshctl scale --gpus 8 --gpu a100 --max-price 2.5 --spot prefer
                                                     the cheapest A100s, spot first, at most $2.50 per GPU-hour
  meshctl scale --gpus 64 --gpus-per-node 8 --region us-east-1 --max-total 200
  meshctl scale --pool h100 --spread                 as many as before, now of several clouds
  meshctl scale --gpus 0 --pool h100                 gives all back, each after its jobs
"""


@click.command("scale", epilog=EXAMPLES)
@click.option(
    "--gpus",
    metavar="N",
    type=Whole(0),
    help="How many GPUs the pool shall have in all; without it as many as before.",
)
@wish_options
@click.option("--wait", is_flag=True, help="Stay until the target is reached. Ctrl-C ends the waiting, not the work.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="TIME",
    callback=duration,
    default="30m",
    show_default=True,
    help="How long --wait stays: 90s, 30m, 2h.",
)
@click.option("--refresh", is_flag=True, help="Have the clouds read their offers again first; takes some seconds.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@output_option
@click.pass_obj
def command(
    session: Session,
    *,
    gpus: int | None,
    wish: Wish,
    wait: bool,
    timeout_s: float,
    refresh: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Set how many GPUs a pool has. Shows the machines and the price first, then asks.

    meshd takes the cheapest machines that meet every option and the pool's own limits. Where a cloud refuses one, it
    goes on to the next zone, type, region and cloud by itself. The options hold until another `scale` gives others:
    `--gpus 5` alone changes the number only. --unset and --reset take them out; `meshctl status` shows them.

    Fewer GPUs never end a job: a node that works is given back when its jobs have ended.
    """
    request = wish.request(session.ask(lambda head: _as_before(head, wish)) if gpus is None else gpus)
    if refresh:
        with render.busy("having the clouds read ..."):
            session.ask(lambda head: head.call(endpoints.OFFERS, OffersQuery(limit=1, refresh=True)))
    preview = session.ask(lambda head: head.call(endpoints.SCALE, request))
    if dry_run:
        if as_json:
            print_json(ScaleOutcome(outcome="planned", answer=preview))
        else:
            render.show(*scale(preview))
        return
    render.show(*scale(preview), err=True)
    question, why = _stakes(preview.plan)
    if why:
        try:
            confirm(question, yes=yes, why=why)
        except QuietError as ended:
            if as_json:
                print_json(ScaleOutcome(outcome="declined", reason=ended.message, answer=preview))
            raise
    answer = session.ask(
        lambda head: head.call(endpoints.SCALE, request.model_copy(update={"dry_run": False})),
        if_interrupted="interrupted; the target may have been set: see `meshctl status`",
    )
    _tell_changes(preview, answer)
    if wait:
        _wait(session, answer, timeout_s, as_json=as_json)
        return
    changes = answer.gpus != answer.gpus_before or bool(answer.plan.steps)
    if as_json:
        print_json(ScaleOutcome(outcome="accepted" if changes else "unchanged", answer=answer))
    wanted = counted(answer.gpus, answer.unit)
    say(f"accepted: pool {answer.pool} shall have {wanted}" if changes else "nothing to do")
    if changes:
        say("  follow it with `meshctl events --follow` or `meshctl status`")


async def _as_before(head: Head, wish: Wish) -> int:
    """The number of GPUs that a pool's target has, for a change of its options alone, or to have it tried again.

    Raises:
        CliError: it cannot be told which pool, or the pool has no target.
    """
    pools = (await head.call(endpoints.STATUS)).pools
    found = [pool for pool in pools if wish.pool in (None, pool.name)]
    names = ", ".join(pool.name for pool in pools) or "none"
    if len(found) != 1:
        raise CliError("say how many GPUs, or which pool is meant", f"--gpus N, or --pool, one of: {names}",
                       code=Exit.USAGE, kind="bad_request")  # fmt: skip
    if found[0].target_id is None:
        raise CliError(f"pool {found[0].name} has no target yet", f"`meshctl scale --pool {found[0].name} --gpus N`",
                       code=Exit.USAGE, kind="bad_request")  # fmt: skip
    return found[0].target_gpus


def _stakes(plan: PlanView) -> tuple[str, str]:
    """The question to ask and what the change does; empty when it neither costs nor removes."""
    stakes = []
    more = plan.usd_per_hour_after - plan.usd_per_hour_before
    if plan.adds or more > 0:
        stakes.append(f"costs {render.usd(max(more, 0))} more per hour")
    if plan.removes:
        stakes.append(f"gives {counted(len(plan.removes), 'machine')} back")
    if not stakes:
        return "", ""
    why = f"this {' and '.join(stakes)}"
    return f"{why[0].upper()}{why[1:]}. Go on?", why


def _tell_changes(preview: ScaleAnswer, answer: ScaleAnswer) -> None:
    """The world may have moved between the question and the answer."""
    if abs(preview.plan.usd_per_hour_after - answer.plan.usd_per_hour_after) > 0.005:
        say(f"the price changed meanwhile: {render.price(answer.plan)}")
    for warning in answer.warnings:
        if warning not in preview.warnings:
            say(f"warning: {warning}")


def _wait(session: Session, answer: ScaleAnswer, timeout_s: float, *, as_json: bool) -> None:
    from meshd.cli.progress import shown
    from meshd.cli.watch import Outcome, watch
    from meshd.runtime.clock import SystemClock

    try:
        with shown(answer) as progress:
            seen = session.ask(lambda head: watch(head, answer, progress, timeout_s=timeout_s, clock=SystemClock()))
    except CliError as error:
        if error.exit_code != Exit.INTERRUPTED:
            raise
        if as_json:
            print_json(ScaleOutcome(outcome="interrupted", answer=answer))
        raise interrupted(
            f"stopped watching; meshd goes on towards {counted(answer.gpus, answer.unit)} in pool {answer.pool}",
            f"see `meshctl status`; take it back with `meshctl scale --pool {answer.pool} --gpus {answer.gpus_before}`",
        ) from None
    verdict = seen.verdict
    if as_json:
        print_json(
            ScaleOutcome(
                outcome=verdict.outcome,
                reason=verdict.reason,
                elapsed_s=seen.elapsed_s,
                answer=answer,
                nodes=seen.nodes,
            )
        )
    spent = render.age(seen.elapsed_s)
    if verdict.outcome is Outcome.REACHED:
        say(f"done: pool {answer.pool} has {counted(answer.gpus, answer.unit)}, after {spent}")
        return
    if verdict.outcome is Outcome.TIMED_OUT:
        raise CliError(
            f"not done after {spent}: {verdict.reason}",
            "meshd goes on: see `meshctl status`, or wait longer with --timeout",
            code=Exit.TIMED_OUT,
            kind="timed_out",
        )
    raise CliError(
        f"pool {answer.pool} did not get to {counted(answer.gpus, answer.unit)}: {verdict.reason}",
        verdict.cure or "see `meshctl status` and `meshctl events`",
        code=Exit.PARTLY if seen.gained else Exit.FAILED,
        kind=verdict.outcome,
    )
