"""Settings, secrets and closing."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

from meshd.contract.cases.base import Cases, kinds
from meshd.contract.faults import FaultKind
from meshd.contract.rig import Rig, not_covered
from meshd.contract.steps import USER_DATA_SECRET, launched, only_machine, request
from meshd.errors import ConfigError, ProviderError
from meshd.provider_api import MachineKind, Offer, Provider


def shows_secret(rig: Rig, shown: str) -> bool:
    """Whether a text contains the credential or a secret of the user data."""
    return any(secret in shown for secret in (*rig.secrets, USER_DATA_SECRET))


def secret_setting(rig: Rig) -> str:
    """The name of the setting with the credential."""
    return rig.secret_setting or not_covered("the rig names no setting with the credential")


class HygieneCases(Cases):
    """Settings are checked, no secret appears anywhere, and closing is safe."""

    async def test_capabilities_are_usable(self, provider: Provider) -> None:
        assert provider.capabilities.user_data_max_b >= 8192
        assert provider.capabilities.launch_spacing_s >= 0
        assert 1 <= provider.capabilities.billing_increment_s <= 3600
        assert 0 <= provider.capabilities.billing_minimum_s <= 3600

    async def test_machines_are_as_the_capabilities_say(self, rig: Rig, provider: Provider) -> None:
        """The other capabilities have cases of their own: spot, tags, idempotent_launch, user_data_max_b, ..."""
        can = provider.capabilities
        assert (can.machine_kind, can.tun, can.systemd) == (rig.machine_kind, rig.tun, rig.systemd)
        await launched(rig, provider)
        assert only_machine(rig).container in (None, can.machine_kind is MachineKind.CONTAINER)

    async def test_settings_are_refused_with_one_line_per_problem(self, rig: Rig) -> None:
        with pytest.raises(ConfigError) as caught:
            rig.make(**rig.bad_settings)
        assert len(caught.value.problems) == len(rig.bad_settings)
        for key in rig.bad_settings:
            assert any(key in problem for problem in caught.value.problems)
        assert not shows_secret(rig, str(caught.value))

    async def test_missing_secret_file_is_named(self, rig: Rig, tmp_path: Path) -> None:
        key = secret_setting(rig)
        settings: dict[str, Any] = {key: None, f"{key}_file": tmp_path / "no-such-file"}
        with pytest.raises(ConfigError, match="no-such-file"):
            rig.make(**settings)

    async def test_secret_from_a_file(self, rig: Rig, tmp_path: Path) -> None:
        key = secret_setting(rig)
        (tmp_path / "key").write_text(f"{rig.secrets[0]}\n")
        settings: dict[str, Any] = {key: None, f"{key}_file": tmp_path / "key"}
        assert list(await rig.make(**settings).list()) == []

    @kinds(FaultKind.INVALID, FaultKind.ERROR_AFTER, FaultKind.CUT_AFTER, FaultKind.HTML_AFTER, FaultKind.AUTH)
    async def test_no_secret_in_errors(self, rig: Rig, provider: Provider, offer: Offer, kind: FaultKind) -> None:
        rig.inject(kind, "launch")
        with pytest.raises(ProviderError) as caught:
            await provider.launch(request(offer))
        shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(vars(caught.value))
        assert not shows_secret(rig, shown)

    async def test_no_secret_in_what_can_be_printed(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        instance = await provider.launch(request(offer))
        shown = repr(provider) + repr(vars(provider)) + repr(instance) + repr(request(offer))
        assert not shows_secret(rig, shown)

    async def test_closing_twice_does_no_harm(self, provider: Provider) -> None:
        await provider.list()
        await provider.aclose()
        await provider.aclose()
