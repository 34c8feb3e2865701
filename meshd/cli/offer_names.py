"""Names in a query for offers that nothing bears: they are refused, since an empty list would be no answer."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from meshd import gpus
from meshd.api.schema import OffersQuery, OffersView
from meshd.cli.exits import CliError, Exit


def refuse_mistyped(view: OffersView, query: OffersQuery) -> None:
    """Refuse providers, regions and GPU models that there are not.

    A region is refused only when every enabled provider was read, and a GPU model only when it is no model that meshd
    knows by name either: what a cloud has run out of is no mistake.

    Raises:
        CliError: with the names that are near, or those that there are.
    """
    enabled = [source.name.removeprefix("offers:") for source in view.sources]
    for name in query.provider:
        if name not in enabled:
            raise _unknown(f"no provider {name} is enabled", name, enabled)
    if not view.total:
        return
    for name in query.region:
        if name not in view.regions and all(source.ok for source in view.sources):
            raise _unknown(f"nothing is offered in {name}", name, view.regions)
    if query.gpu and not any(gpus.related(query.gpu, model) for model in {*view.gpus, *gpus.MODELS}):
        models = sorted({*view.gpus, *(model.partition("-")[0] for model in view.gpus)})
        raise _unknown(f"there is no GPU {query.gpu}", query.gpu, models)


def _unknown(text: str, name: str, known: Iterable[str]) -> CliError:
    names = list(known)
    near = get_close_matches(name, names, n=4, cutoff=0.6)
    cure = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(names[:20]) or 'none'}"
    return CliError(text, cure, code=Exit.USAGE, kind="unknown")
