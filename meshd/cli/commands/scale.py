"""`meshctl scale`: sets how many GPUs a pool has."""

from __future__ import annotations

from functools import partial

import click

from meshd.api import endpoints
from meshd.api.schema import OffersQuery, PlanView, ScaleAnswer, ScaleOutcome
from meshd.cli.client import HeadClient
from meshd.cli.errors import CliError, ExitCode, QuietError, interrupted
from meshd.cli.params.options import as_json_option, timeout_option, yes_option
from meshd.cli.params.scale_options import ScaleOptions, scale_options
from meshd.cli.params.values import WholeNumber
from meshd.cli.render.plan import price, target
from meshd.cli.render.terminal import show, spinner
from meshd.cli.session import Session, confirm, print_json, say
from meshd.plaintext import age, counted, usd

EXAMPLES = """\b
Examples:
  meshctl scale --gpus 8 --dry-run                   show what would be rented, and the price
  meshctl scale --gpus 8 --wait                      show the price, ask, and wait until all are ready
  meshctl scale --gpus 8 --gpu a100 --max-price 2.5 --spot prefer
                                                     the cheapest A100s, spot first, at most $2.50 per GPU-hour
  meshctl scale --gpus 64 --gpus-per-node 8 --region us-east-1 --max-total 200
  meshctl scale --pool h100 --spread                 as many as before, now in several clouds
  meshctl scale --gpus 0 --pool h100                 give all back, each after its jobs
"""


@click.command("scale", epilog=EXAMPLES)
@click.option(
    "--gpus",
    metavar="N",
    type=WholeNumber(0),
    help="How many GPUs the pool shall have in all. By default as many as before.",
)
@scale_options
@click.option("--wait", is_flag=True, help="Wait until the target is reached. Ctrl-C ends the wait, not the work.")
@timeout_option
@click.option("--refresh", is_flag=True, help="Ask the clouds for their offers again first; takes some seconds.")
@yes_option
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@as_json_option
@click.pass_obj
def command(
    session: Session,
    *,
    gpus: int | None,
    options: ScaleOptions,
    wait: bool,
    timeout_s: float,
    refresh: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Set how many GPUs a pool has.

    It shows the machines and the price, then asks; the setting guards.confirm_usd_per_hour says up to which price it
    does not.

    meshd rents the cheapest machines that match every option and the pool's own limits. If a cloud has no machine,
    meshd tries the next zone, type, region and cloud. Options stay in use until another `scale` changes them: `--gpus
    5` alone changes only the number. --unset and --reset drop them; `meshctl status` shows them.

    Fewer GPUs never end a job: meshd gives a working node back when its jobs have ended. Jobs in Slurm's queue may have
    machines rented beside these.
    """
    if gpus is None:
        gpus = session.ask(lambda head: _last_target(head, options.pool))
    request = options.request(gpus)
    if refresh:
        with spinner("asking the clouds ..."):
            session.ask(lambda head: head.call(endpoints.OFFERS, OffersQuery(limit=1, refresh=True)))
    preview = session.ask(lambda head: head.call(endpoints.SCALE, request))
    if dry_run:
        if as_json:
            print_json(ScaleOutcome(outcome="planned", answer=preview))
        else:
            show(*target(preview))
        return
    show(*target(preview), err=True)
    question, why = _question(preview.plan)
    if why and preview.asks:
        try:
            confirm(question, yes=yes, why=why)
        except QuietError as ended:
            if as_json:
                print_json(ScaleOutcome(outcome="declined", reason=ended.message, answer=preview))
            raise
    answer = session.ask(
        lambda head: head.call(endpoints.SCALE, request.model_copy(update={"dry_run": False})),
        if_interrupted="interrupted; the target may be set: see `meshctl status`",
    )
    _print_changes(preview, answer)
    if wait:
        _wait(session, answer, timeout_s, as_json=as_json)
        return
    changes = answer.gpus != answer.gpus_before or bool(answer.plan.steps)
    if as_json:
        print_json(ScaleOutcome(outcome="accepted" if changes else "unchanged", answer=answer))
    gpus_text = counted(answer.gpus, answer.unit)
    say(f"accepted: the target of pool {answer.pool} is {gpus_text}" if changes else "nothing to do")
    if changes:
        say("  follow it with `meshctl events --follow` or `meshctl status`")


async def _last_target(head: HeadClient, pool: str | None) -> int:
    """The target that a pool has, in GPUs.

    Raises:
        CliError: there are several pools and none is named, there is no such pool, or it has no target.
    """
    pools = (await head.call(endpoints.STATUS)).pools
    found = [one for one in pools if pool in (None, one.name)]
    names = ", ".join(one.name for one in pools) or "none"
    if len(found) != 1:
        text = "the number of GPUs is missing" if pool is None else f"there is no pool {pool}"
        raise CliError(text, f"add --gpus N, or --pool with one of: {names}", code=ExitCode.USAGE, kind="bad_request")
    if found[0].target_id is None:
        raise CliError(f"pool {found[0].name} has no target yet", f"`meshctl scale --pool {found[0].name} --gpus N`",
                       code=ExitCode.USAGE, kind="bad_request")  # fmt: skip
    return found[0].target_gpus


def _question(plan: PlanView) -> tuple[str, str]:
    """The question to ask, and what the change does. Both are empty if it costs nothing and removes nothing."""
    effects = []
    more = plan.usd_per_hour_after - plan.usd_per_hour_before
    if plan.adds or more > 0:
        effects.append(f"costs {usd(max(more, 0))} more per hour")
    if plan.removes:
        effects.append(f"gives {counted(len(plan.removes), 'machine')} back")
    if not effects:
        return "", ""
    why = f"this {' and '.join(effects)}"
    return f"{why[0].upper()}{why[1:]}. Go on?", why


def _print_changes(preview: ScaleAnswer, answer: ScaleAnswer) -> None:
    """Print what changed between the preview and the answer."""
    if abs(preview.plan.usd_per_hour_after - answer.plan.usd_per_hour_after) > 0.005:
        say(f"the price changed meanwhile: {price(answer.plan)}")
    for warning in answer.warnings:
        if warning not in preview.warnings:
            say(f"warning: {warning}")


def _wait(session: Session, answer: ScaleAnswer, timeout_s: float, *, as_json: bool) -> None:
    """Wait for the target and say how it ended.

    Raises:
        CliError: the target was not reached, or not in time; or Ctrl-C.
    """
    from meshd.cli.progress import shown
    from meshd.cli.target_wait import PhaseChanges, WaitOutcome, draw, wait_for_target
    from meshd.runtime.clock import SystemClock

    gpus = counted(answer.gpus, answer.unit)
    try:
        with shown(PhaseChanges(), partial(draw, answer)) as progress:
            result = session.ask(
                lambda head: wait_for_target(head, answer, progress, timeout_s=timeout_s, clock=SystemClock())
            )
    except CliError as error:
        if error.exit_code != ExitCode.INTERRUPTED:
            raise
        if as_json:
            print_json(ScaleOutcome(outcome="interrupted", answer=answer))
        raise interrupted(
            f"stopped waiting; meshd goes on until pool {answer.pool} has {gpus}",
            f"see `meshctl status`; undo it with `meshctl scale --pool {answer.pool} --gpus {answer.gpus_before}`",
        ) from None
    outcome, reason = result.assessment.outcome, result.assessment.reason
    if as_json:
        print_json(
            ScaleOutcome(
                outcome=outcome, reason=reason, elapsed_s=result.elapsed_s, answer=answer, nodes=result.nodes
            )
        )  # fmt: skip
    elapsed = age(result.elapsed_s)
    if outcome is WaitOutcome.REACHED:
        say(f"done: pool {answer.pool} has {gpus}, after {elapsed}")
        return
    if outcome is WaitOutcome.TIMED_OUT:
        raise CliError(
            f"not done after {elapsed}: {reason}",
            "meshd goes on: see `meshctl status`, or wait longer with --timeout",
            code=ExitCode.TIMED_OUT,
            kind="timed_out",
        )
    raise CliError(
        f"pool {answer.pool} did not reach {gpus}: {reason}",
        result.assessment.cure or "see `meshctl status` and `meshctl events`",
        code=ExitCode.PARTLY if result.gained else ExitCode.FAILED,
        kind=outcome,
    )
