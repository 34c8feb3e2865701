"""What all tests share."""

from __future__ import annotations

import logging

import structlog

# Tests look at what happened, not at log lines; the tests of logging set it up themselves.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
