"""`meshctl audit`: what lies on the accounts, and what of it leaked."""

from __future__ import annotations

import click

from meshd.api import endpoints
from meshd.cli.errors import CliError, ExitCode
from meshd.cli.params.options import as_json_option
from meshd.cli.render.audit import audit
from meshd.cli.render.terminal import show, spinner
from meshd.cli.session import Session, print_json
from meshd.plaintext import counted


@click.command("audit")
@click.option("--leaked", "only_leaked", is_flag=True, help="Leave out what is accounted for, and what is foreign.")
@as_json_option
@click.pass_obj
def command(session: Session, *, only_leaked: bool, as_json: bool) -> None:
    """List all that lies on the accounts, and what leaked.

    Machines, volumes, addresses, images, snapshots, startup scripts, and the tailnet's devices and auth keys, whoever
    made them. Leaked is what this cluster made and nothing knows any more; the command that ends it is printed. It
    deletes nothing, and never touches what is foreign.

    For cron: it exits with 8 if anything leaked, and else with 9 if something could not be listed.
    """
    with spinner("asking the clouds ..."):
        view = session.ask(lambda head: head.call(endpoints.AUDIT))
    if only_leaked:
        view = view.model_copy(update={"rows": [row for row in view.rows if row.verdict in {"leaked", "unknown"}]})
    if as_json:
        print_json(view)
    else:
        show(*audit(view))
    if view.leaked:
        text = f"{counted(view.leaked, 'thing')} leaked"
        raise CliError(text, "" if as_json else "run the commands above", code=ExitCode.LEAKED, kind="leaked")
    if view.unknown:
        raise CliError(
            f"{counted(view.unknown, 'thing')} could not be listed, so nothing is known of them",
            "`meshctl doctor` shows what the credentials lack", code=ExitCode.NOT_LISTED, kind="not_listed",
        )  # fmt: skip
