"""Receivers of notifications in the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshd import config
from meshd.errors import ConfigError
from meshd.plan.notify_places import address_fault, url_fault

GOOD = """
[notify.hook]
url = "https://alerts.example.org/x"
[notify.near]
url = "http://100.101.102.103:8080/x"
[notify.chat]
format = "slack"
[notify.ops]
mail_to = ["ops@example.org"]
mail_from = "meshd@example.org"
"""


def loaded(tmp_path: Path, text: str) -> config.Settings:
    path = tmp_path / "meshd.toml"
    path.write_text(text)
    return config.load(path)


def test_good_ones(tmp_path: Path) -> None:
    assert list(loaded(tmp_path, GOOD).notify) == ["hook", "near", "chat", "ops"]


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ('url = "http://alerts.example.org/x"', "url"),
        ('url = "ftp://alerts.example.org/x"', "url"),
        ('url = "https://u:p@alerts.example.org/x"', "url"),
        ('url = "https://169.254.169.254/x"', "url"),
        ('url = "https://[::ffff:169.254.169.254]/x"', "url"),
        ('url = "https://[fd00:ec2::254]/x"', "url"),
        ('url = "http://0.0.0.0/x"', "url"),
        ('url = "https://a.example/\\r\\nX: y"', "url"),
        ('url_file = "hook"', "url_file"),
        ('url = "https://a.example/"\nmail_to = ["a@b.c"]\nmail_from = "a@b.c"', "mail_to"),
        ('mail_to = ["a@b.c\\nBcc: x@y.z"]\nmail_from = "a@b.c"', "mail_to"),
        ('mail_to = ["a@b.c"]', "mail_from"),
        ('mail_to = ["a@b.c"]\nmail_from = "a@b.c"\nsmtp_server = "smtp.example.org"', "smtp_tls"),
        ('mail_to = ["a@b.c"]\nmail_from = "a@b.c"\nsmtp_server = "a b"\nsmtp_tls = "tls"', "smtp_server"),
        ("repeat_s = 5", "repeat_s"),
    ],
)
def test_what_is_refused(tmp_path: Path, lines: str, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, f"[notify.ops]\n{lines}\n")
    assert f"notify.ops.{key}" in str(error.value) and "u:p" not in str(error.value)


def test_a_url_that_is_a_secret_is_doubted_in_the_file_that_all_may_read(tmp_path: Path) -> None:
    path = tmp_path / "meshd.toml"
    path.write_text('[notify.chat]\nurl = "https://hooks.slack.com/services/T0/B0/xyz"\n')
    file = config.read(path)
    (doubt,) = config.doubts(config.parse(file), file.table, 0o644, str(path))
    assert doubt.code == "secret_in_file" and "xyz" not in doubt.text


def test_addresses() -> None:
    assert not address_fault("127.0.0.1") and not address_fault("10.1.2.3") and not address_fault("2001:db8::1")
    refused = ("169.254.1.1", "fe80::1", "100.100.100.200", "224.0.0.1", "::", "::ffff:169.254.169.254", "x")
    assert all(address_fault(one) for one in refused)
    assert not url_fault("http://localhost:8080/x") and url_fault("http://localhost.example.org/x")
    assert url_fault("https://a.example:99999/") and url_fault("https://") and url_fault("https://a.example/#x")
