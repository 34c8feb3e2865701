"""Makes providers out of adapters, which are plug-ins: somebody else's program, which may fail in any way."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

import structlog

from meshd.codes import FaultCode
from meshd.errors import ConfigError, Fault, MeshdError
from meshd.provider_api import Brochure, Provider, ProviderCapabilities, ProviderContext
from meshd.settings_words import near

GROUP = "meshd.providers"
_REPORT = "`journalctl -u meshd` has the whole error; install a version that works, or set enabled = false"
log = structlog.get_logger(__name__)


def installed() -> Mapping[str, EntryPoint]:
    """All adapters that are installed, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def make(name: str, adapters: Mapping[str, EntryPoint], context: ProviderContext) -> Provider | tuple[Fault, ...]:
    """A provider, or why there is none; never raises.

    Args:
        name: in the settings.
        adapters: `installed()`.
        context: its settings and what else it is given.
    """
    own = ("providers", name)
    if name not in adapters:
        cure = near(name, adapters) or f"there are: {', '.join(sorted(adapters)) or 'none'}"
        return (Fault("no such adapter is installed", cure, own, code=FaultCode.NO_SUCH_PROVIDER),)
    try:
        provider: Provider = adapters[name].load()(context)
        if provider.name != name or not isinstance(provider.capabilities, ProviderCapabilities):
            return (Fault(f"its adapter calls itself {provider.name!r}", _REPORT, own, code=FaultCode.ADAPTER_BROKEN),)
    except ConfigError as error:
        return tuple(_whole(error.source, fault, own) for fault in error.faults)
    except MeshdError as error:
        return (Fault(str(error), "", own),)
    except ImportError as error:
        cure = f"run `deploy/head/install` again, or `/opt/meshd/venv/bin/pip install 'meshd[{name}]'`"
        return (Fault(f"its SDK is not installed ({error.name or error})", cure, own, code=FaultCode.SDK_MISSING),)
    except (Exception, SystemExit) as error:
        log.exception("provider_broke", provider=name)
        return (
            Fault(
                f"its adapter fails as it is loaded: {type(error).__name__}: {error}"[:300],
                _REPORT,
                own,
                code=FaultCode.ADAPTER_BROKEN,
            ),
        )
    return provider


def brochure_of(
    name: str, adapters: Mapping[str, EntryPoint], context: ProviderContext
) -> Brochure | tuple[Fault, ...] | None:
    """What can be said of a provider without its cloud, its credentials and its SDK.

    An adapter's package may have a module `brochure` with a function of that name; None where it has none.
    """
    own = ("providers", name)
    if name not in adapters:
        cure = near(name, adapters) or f"there are: {', '.join(sorted(adapters)) or 'none'}"
        return (Fault("no such adapter is installed", cure, own, code=FaultCode.NO_SUCH_PROVIDER),)
    module = f"{adapters[name].module.rpartition('.')[0]}.brochure"
    try:
        if find_spec(module) is None:
            return None
        made: Brochure = import_module(module).brochure(context)
    except ConfigError as error:
        return tuple(_whole(error.source, fault, own) for fault in error.faults)
    return made


def _whole(source: str, fault: Fault, own: tuple[str, ...]) -> Fault:
    """A fault with the name of its file or table, which an adapter tells beside it."""
    if fault.key:
        return fault
    text = fault.text if source.startswith("[") else f"{source}: {fault.text}"
    return Fault(text, fault.cure, own, code=fault.code)
