"""`meshctl config check`: checks the settings file, the credentials and each provider's table, without the daemon."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from meshd import config
from meshd.api.schema import CheckRow
from meshd.cli.promise_check import promise_rows
from meshd.codes import FaultCode
from meshd.config import File, Settings, tailnet_credentials
from meshd.config.setup_script import script_doubts
from meshd.errors import ConfigError, Fault
from meshd.model.host import PROVIDER
from meshd.notify.receiver import open_all
from meshd.plaintext import counted
from meshd.plan import provider_capabilities
from meshd.plugins import installed, make
from meshd.provider_api import Offer, Provider, ProviderCapabilities, ProviderContext
from meshd.runtime.secretfile import VARIABLE, read_secret
from meshd.settings_words import dotted

AUTH_KEY_CREDENTIAL = "tailscale_auth_key"


def check_settings(path: Path, offers: Callable[[], Sequence[Offer] | None] = lambda: None) -> list[CheckRow]:
    """A row for each fault and each part that is fine. No check connects to a cloud.

    Args:
        path: the settings file.
        offers: what can be rented, from meshd; None when it does not run. Asked only if a pool's check needs it.
    """
    file: File | None = None
    try:
        file = config.read(path)
        settings = config.parse(file)
    except ConfigError as error:
        more = _fault_rows(file, config.secrets_in(file.table, file.mode)) if file is not None else []
        return error_rows(error) + more
    found = [_summary(path, settings)]
    found += _fault_rows(file, config.doubts(settings, file.table, file.mode, str(path)))
    found += _fault_rows(file, script_doubts(settings))
    if not settings.pools:
        found.append(_warning("pools", FaultCode.NO_POOLS, "there are none", "add a [pools.NAME] table"))
    if not _enabled(settings):
        cure = "add a [providers.NAME] table"
        found.append(_warning("providers", FaultCode.NO_PROVIDERS, "none is enabled", cure))
    directory = path.parent / "credentials"
    with credentials(directory) as readable:
        if not readable:
            text = "this user may not read them, so checks below may miss credentials"
            found.append(_warning("credentials", FaultCode.CREDENTIALS_HIDDEN, text, "run it as root"))
        else:
            found += [*_credential_files(directory), *_auth_key(settings), *_receivers(settings)]
        able: dict[str, ProviderCapabilities] = {}
        found += asyncio.run(_check_providers(settings, file, able))
    if any(settings.from_queue(pool) for pool in settings.pools.values()):
        found += promise_rows(settings, able, offers())
    return found


def error_rows(error: ConfigError) -> list[CheckRow]:
    """A row for each fault of settings, or of a file with a secret, that cannot be used."""
    return [_fault_row(error.source, fault, "") for fault in error.faults]


def _fault_rows(file: File, faults: Iterable[Fault], about: str = "") -> list[CheckRow]:
    """A row for each fault, with its line in the file; `about` names the subject of faults without a line."""
    return [_fault_row(str(file.path), fault, about) for fault in file.placed(faults)]


def _fault_row(source: str, fault: Fault, about: str) -> CheckRow:
    name = f"{source}:{fault.line}" if fault.line else about or source
    text = f"{about}: {fault.text}" if about and fault.line and not fault.text.startswith(about) else fault.text
    return CheckRow(name=name, status="fail", code=fault.code, text=text, cure=fault.cure)


def _summary(path: Path, settings: Settings) -> CheckRow:
    text = f"cluster {settings.cluster.name}, {counted(len(settings.pools), 'pool')}, "
    return CheckRow(name=str(path), status="ok", text=text + counted(len(_enabled(settings)), "provider"))


def _enabled(settings: Settings) -> list[str]:
    return [name for name, table in settings.providers.items() if table.enabled]


@contextmanager
def credentials(directory: Path) -> Iterator[bool]:
    """Offer the credentials as systemd offers them to the daemon: CREDENTIALS_DIRECTORY has a file for each.

    `directory/NAME/KEY` becomes the credential `NAME_KEY`, as LoadCredential= in meshd.service has it.

    Yields:
        Whether this user may read the credentials. A directory that does not exist has none.
    """
    if os.environ.get(VARIABLE):
        yield True
        return
    try:
        open_ = os.access(directory, os.R_OK | os.X_OK)
        found = {f"{path.parent.name}_{path.name}": path for path in directory.glob("*/*")} if open_ else {}
        there = [directory, *(path for path in found.values() if path.exists())]
        readable = not directory.exists() or all(os.access(path, os.R_OK) for path in there)
    except OSError:
        found, readable = {}, False
    with tempfile.TemporaryDirectory(prefix="meshctl-") as made:
        for name, path in found.items():
            (Path(made) / name).symlink_to(path.absolute())
        os.environ[VARIABLE] = made
        try:
            yield readable
        finally:
            del os.environ[VARIABLE]


def _credential_files(directory: Path) -> Iterator[CheckRow]:
    """Credentials that others may read, and entries that are not files."""
    for path in sorted(directory.glob("*/*")) if directory.is_dir() else ():
        if not path.exists():
            text = "a link to a file that does not exist"
            yield _file_row(path, FaultCode.SECRET_UNREADABLE, text, "put the key into a file here")
        elif not path.is_file():
            text = "a directory, not a file with a key"
            yield _file_row(path, FaultCode.SECRET_UNREADABLE, text, f"remove it: `rmdir {path}`")
        elif (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
            text = f"others may read it (mode {mode:04o})"
            yield _file_row(path, FaultCode.SECRET_EXPOSED, text, f"`chmod 0600 {path}`")


def _file_row(path: Path, code: FaultCode, text: str, cure: str) -> CheckRow:
    return CheckRow(name=str(path), status="fail", code=code, text=text, cure=cure)


def _warning(name: str, code: FaultCode, text: str, cure: str) -> CheckRow:
    return CheckRow(name=name, status="warn", code=code, text=text, cure=cure)


def _auth_key(settings: Settings) -> list[CheckRow]:
    """Whether new machines can get an auth key: from a file, or minted with an API credential."""
    tailnet = settings.tailnet
    try:
        minting = any(tailnet_credentials(tailnet))
        shared = None if tailnet.mint_auth_key else read_secret(tailnet.auth_key_file, AUTH_KEY_CREDENTIAL)
    except ConfigError as error:
        return error_rows(error)
    if shared is None and not minting:
        cure = "put one into credentials/tailscale/auth_key, or let meshd mint it (docs/tailnet.md)"
        return [_warning("auth key", FaultCode.NO_AUTH_KEY, "there is none: nothing can be rented", cure)]
    return []


def _receivers(settings: Settings) -> list[CheckRow]:
    """A row for each receiver of notifications; nothing is sent."""
    usable, off = open_all(settings.notify)
    found = [
        CheckRow(name=f"notify.{name}", status="ok", text="`meshctl notify test` sends a test message")
        for name in usable
    ]
    return found + [row for error in off.values() for row in error_rows(error)]


async def _check_providers(settings: Settings, file: File, able: dict[str, ProviderCapabilities]) -> list[CheckRow]:
    """A row for each enabled provider, or for each fault that its adapter finds in its table; then those of pools.

    Adds to `able` what the usable providers can do.
    """
    adapters = installed()
    found: list[CheckRow] = []
    for name, table in settings.providers.items():
        if table.enabled and name == PROVIDER:  # owned machines need no adapter
            able[name] = ProviderCapabilities()
            found += _own_settings(table.own(), f"providers.{name}")
        elif table.enabled:
            context = ProviderContext(settings.cluster.name, table.own(), lambda: datetime.now(UTC))
            made = make(name, adapters, context)
            if not isinstance(made, tuple):
                able[name] = made.capabilities
            found += await provider_rows(file, made, f"providers.{name}")
    rents_pods = {name: provider_capabilities.rents_pods(can) for name, can in able.items()}
    return found + pod_rows(settings, file, rents_pods)


def _own_settings(own: Mapping[str, object], about: str) -> list[CheckRow]:
    """The row of owned machines, whose table is empty."""
    if own:
        text = f"owned machines have no settings, and there is {', '.join(sorted(own))}"
        return [CheckRow(name=about, status="fail", code=FaultCode.UNKNOWN_KEY, text=text, cure="remove it")]
    return [CheckRow(name=about, status="ok", text="owned machines: `meshctl invite` invites one")]


async def provider_rows(file: File, made: Provider | tuple[Fault, ...], about: str) -> list[CheckRow]:
    """The rows of one provider; closes it.

    Args:
        file: the settings file.
        made: the provider, or the faults of its table.
        about: the table's name.
    """
    if isinstance(made, tuple):
        return _fault_rows(file, made, about)
    can = made.capabilities
    await made.aclose()
    text = f"the adapter accepts its settings; {provider_capabilities.description(can)}"
    return [CheckRow(name=about, status="ok", text=text)]


def pod_rows(settings: Settings, file: File, rents_pods: Mapping[str, bool]) -> list[CheckRow]:
    """A row for each pool that can rent nothing, because its providers rent pods, or no pods.

    Args:
        settings: the settings.
        file: their file.
        rents_pods: the usable providers, and whether each rents pods.
    """
    faults = []
    for name, pool in settings.pools.items():
        found = {one: rents_pods[one] for one in pool.providers or rents_pods if one in rents_pods}
        policy = settings.pod_policy(pool)
        useless = {"never": True, "only": False}.get(policy)
        if found and useless is not None and set(found.values()) == {useless}:
            key = ("pools", name, "pods")
            what = "rents only pods" if useless else "rents no pods"
            why = f'{dotted(key)} = "{policy}"' if pool.pods else f"{dotted(key)} is not set, and pods have no share"
            text = f"{why}; and {' and '.join(found)} {what}, so nothing can be rented"
            faults.append(Fault(text, 'set it to "allow", or name other providers', key, code=FaultCode.PODS))
    return [row.model_copy(update={"status": "warn"}) for row in _fault_rows(file, faults)]
