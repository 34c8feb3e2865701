from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from pydantic import SecretStr

from meshd.config import LogSettings
from meshd.obs.log import redact, register_secret, set_up
from meshd.redaction import Redactor

SECRET = 'tskey-auth-"quoted"\\kept'


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("meshd.redaction._known", Redactor())
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)


def written(format_: str = "json", env: dict[str, str] | None = None, level: str = "info") -> io.StringIO:
    out = io.StringIO()
    set_up(LogSettings(format=format_, level=level), stream=out, env=env or {})
    return out


def test_one_json_object_a_line() -> None:
    out = written()
    structlog.get_logger("meshd.x").info("machine_ready", machine="lab-1", count=3)
    line = json.loads(out.getvalue())
    assert line | {"timestamp": ""} == {
        "event": "machine_ready",
        "machine": "lab-1",
        "count": 3,
        "level": "info",
        "logger": "meshd.x",
        "timestamp": "",
    }
    assert line["timestamp"].endswith("Z")


@pytest.mark.parametrize(
    ("method", "priority"), [("error", 3), ("warning", 4), ("info", 6), ("debug", 7), ("critical", 2)]
)
def test_journald_gets_priorities(method: str, priority: int) -> None:
    out = written("auto", {"JOURNAL_STREAM": "8:1"}, "debug")
    getattr(structlog.get_logger("x"), method)("said")
    assert out.getvalue().startswith(f'<{priority}>{{"')
    assert "_priority" not in out.getvalue()


def test_the_standard_library_goes_the_same_way() -> None:
    out = written("auto", {"JOURNAL_STREAM": "8:1"})
    logging.getLogger("other").warning("%s of %d", "two", 3, extra={"where": "here"})
    assert out.getvalue().startswith("<4>")
    assert json.loads(out.getvalue()[3:])["event"] == "two of 3"
    assert json.loads(out.getvalue()[3:])["where"] == "here"


def test_levels() -> None:
    out = written(level="warning")
    structlog.get_logger("x").info("quiet")
    logging.getLogger("y").info("quiet")
    logging.getLogger("aiohttp.access").info("quiet")
    assert out.getvalue() == ""


def test_pretty_is_for_people() -> None:
    out = written("pretty")
    structlog.get_logger("x").info("machine_ready", machine="lab-1")
    assert "machine_ready" in out.getvalue() and not out.getvalue().startswith(("{", "<"))


@pytest.mark.parametrize("format_", ["json", "pretty"])
def test_no_secret_reaches_a_line(format_: str) -> None:
    out = written(format_)
    register_secret(SECRET)
    register_secret("munge-key-in-base64==\n")
    log = structlog.get_logger("x")
    log.info(f"event with {SECRET}")
    log.info(
        "deep",
        one={"two": [{"three": f"a {SECRET} b"}]},
        four=(SECRET,),
        five=SecretStr(SECRET),
        six={SECRET: 1},
        seven={SECRET},
    )
    log.info("object", thing=ValueError(f"refused {SECRET}"))
    log.info("%s", SECRET)
    log.bind(key=SecretStr("never-registered")).info("bound")
    logging.getLogger("aiohttp").error("in the URL: %s", f"https://x/?k={SECRET}")
    try:
        raise RuntimeError(f"munge-key-in-base64== is bad, so is {SECRET}")
    except RuntimeError:
        log.exception("failed")
        logging.getLogger("other").exception("failed")
    text = out.getvalue()
    assert "failed" in text and "Traceback" in text and "**********" in text
    for secret in (
        SECRET,
        SECRET.replace("\\", "\\\\").replace('"', '\\"'),
        "munge-key-in",
        "never-registered",
        "quoted",
    ):
        assert secret not in text


def test_the_longest_goes_first_and_short_words_stay() -> None:
    register_secret("abcdef")
    register_secret("abcdefghij")
    register_secret("is")
    register_secret("")
    assert redact("this abcdefghij abcdef") == "this ********** **********"
