"""The credentials for the tailnet's API."""

from __future__ import annotations

from pydantic import SecretStr

from meshd.codes import FaultCode
from meshd.config.models import TailnetSettings
from meshd.errors import ConfigError, Fault
from meshd.runtime.secretfile import read_secret


def tailnet_credentials(tailnet: TailnetSettings) -> tuple[SecretStr | None, SecretStr | None]:
    """The API access token and the OAuth client's secret; None for a missing one.

    Raises:
        ConfigError: a named file cannot be read, or the settings need a credential and both are missing.
    """
    token = read_secret(tailnet.api_token_file, "tailscale_api_token")
    secret = read_secret(tailnet.oauth_client_secret_file, "tailscale_oauth_client_secret")
    needed = {
        "mint_auth_key = true": tailnet.mint_auth_key,
        'key_mode = "per_machine"': tailnet.key_mode == "per_machine",
    }
    for setting in [name for name, is_set in needed.items() if is_set and not (token or secret)]:
        cure = "put an API token into credentials/tailscale/api_token, or set up an OAuth client (docs/tailnet.md)"
        other = "" if setting.startswith("mint") else ', or set key_mode = "reusable"'
        fault = Fault(f"{setting} needs a credential that mints keys: {cure}{other}", code=FaultCode.CREDENTIAL_NEEDED)
        raise ConfigError(f"tailnet.{setting.split()[0]}", [fault])
    return token, secret
