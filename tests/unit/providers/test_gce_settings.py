"""Settings and keys of Compute Engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import SecretStr

from meshd.errors import ConfigError
from providers._settings import parse
from providers.gce.settings import GceSettings, key_info


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"zones": ["europe-west4-b"]}, "zones: europe-west4-b"),
        ({"images": {"x86_64": "y"}}, "images: x86_64 is none of cpu/arm64"),
        ({"labels": {"Team": "x"}}, "labels: Team breaks Google's rule"),
        ({"ssh_keys": ["ssh-ed25519 AAAA"]}, "ssh_keys: a line is not user:public-key"),
        ({"metadata": {"startup-script": "x"}}, "metadata: startup-script is meshd's own"),
        ({"anonymous": True}, "anonymous needs api_endpoint"),
        ({"anonymous": True, "api_endpoint": "http://x", "service_account": "k"}, "anonymous or service_account"),
        ({"service_account": "k", "service_account_file": "/k"}, "service_account or service_account_file, not both"),
        ({"attached_gpus": ["g2-standard-4+nvidia-l4x1"]}, "attached_gpus[0]"),
        ({"attached_gpus": ["n1-standard-8"]}, "attached_gpus[0]"),
        ({"regions": []}, "regions"),
        ({"instance_types": ['a3-"']}, "instance_types: names have"),
        ({"api_endpoint": "compute.googleapis.com"}, "api_endpoint"),
        ({"max_run_s": 1}, "max_run_s"),
        ({"instance_type": "x"}, "instance_type: unknown key"),
    ],
)
def test_wrong_settings(table: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(GceSettings, table, "[providers.gce]")
    assert len(caught.value.problems) == 1
    assert problem in caught.value.problems[0]


KEY = {"type": "service_account", "client_email": "a@b", "private_key": "hush", "token_uri": "https://x"}


def test_keys() -> None:
    assert key_info(SecretStr(json.dumps(KEY)))["client_email"] == "a@b"
    for text in ("hush", "[]", json.dumps({**KEY, "type": "authorized_user"}), json.dumps({**KEY, "client_email": ""})):
        with pytest.raises(ConfigError) as caught:
            key_info(SecretStr(text))
        assert "hush" not in str(caught.value)
