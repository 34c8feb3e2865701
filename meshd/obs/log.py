"""Logging: structlog for meshd and for the standard library's loggers, without secrets.

Under systemd each line is JSON with a `<N>` priority for journald; on a terminal it is text for people.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, TextIO

import structlog
from pydantic import SecretBytes, SecretStr
from structlog.typing import EventDict, Processor, WrappedLogger

from meshd.config import LogSettings
from meshd.redaction import HIDDEN, redact, register_secret
from meshd.runtime.terminal import clean, clean_line

__all__ = ["HIDDEN", "redact", "redact_event", "register_secret", "set_up"]

_MANY_LINES = frozenset({"exception", "stack"})

_PRIORITIES: Final = {"critical": 2, "error": 3, "exception": 3, "warning": 4, "info": 6, "debug": 7}


def redact_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A structlog processor that hides SecretStr and registered secrets, at any depth."""
    return {redact(str(key)): _clean(value) for key, value in event.items()}


def _clean(value: Any) -> Any:
    if isinstance(value, SecretStr | SecretBytes):
        return HIDDEN
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redact(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return redact(str(value))


def _clean_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A structlog processor for terminals: text from nodes, clouds and callers cannot control the terminal."""
    one_line = {k: clean_line(v) if isinstance(v, str) and k not in _MANY_LINES else v for k, v in event.items()}
    return {k: clean(v) if isinstance(v, str) else v for k, v in one_line.items()}


class _RedactedStream:
    """Redacts again as text is written: renderers and tracebacks may put secrets together."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(redact(text))

    def flush(self) -> None:
        self._stream.flush()


def _prefix_priority(_logger: WrappedLogger, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event["_priority"] = _PRIORITIES.get(str(event.get("level", "info")), 6)
    return event


class _JournalRenderer:
    """JSON on one line, behind `<N>` when journald reads it."""

    def __init__(self, *, prefix: bool) -> None:
        self._prefix = prefix
        self._json = structlog.processors.JSONRenderer(default=str)

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        priority = event.pop("_priority", 6)
        line = self._json(logger, method, event)
        text = line if isinstance(line, str) else line.decode("utf-8", "replace")
        return f"<{priority}>{text}" if self._prefix else text


def set_up(settings: LogSettings, *, stream: TextIO | None = None, env: Mapping[str, str] | None = None) -> None:
    """Set up logging for the whole process; a second call replaces the first.

    Args:
        settings: level and format. "auto": pretty on a terminal without journald, otherwise JSON.
        stream: where lines go; None: standard error.
        env: has JOURNAL_STREAM under journald; None: the process's environment.
    """
    stream = stream or sys.stderr
    journal = bool((os.environ if env is None else env).get("JOURNAL_STREAM"))
    as_json = settings.format == "json" or (settings.format == "auto" and (journal or not stream.isatty()))
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[Processor] = (
        [structlog.processors.format_exc_info, _prefix_priority, redact_event, _JournalRenderer(prefix=journal)]
        if as_json
        else [
            structlog.processors.format_exc_info,
            redact_event,
            _clean_event,
            structlog.dev.ConsoleRenderer(colors=stream.isatty()),
        ]
    )
    handler = logging.StreamHandler(_RedactedStream(stream))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    for noisy in ("aiohttp.access", "botocore", "urllib3", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
