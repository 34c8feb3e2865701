"""What EC2 and IAM tell of a missing permission. PURE: no I/O, no clock.

Sources: the IAM user guide on access-denied messages, and the STS reference, DecodeAuthorizationMessage.
"""

from __future__ import annotations

import json
import re

_NAMED = re.compile(r"not authorized to perform: ([a-z0-9-]+:[A-Za-z]+)(?: on resource: (\S+))?")
_ENCODED = re.compile(r"\s*Encoded authorization failure message: (\S+)")
_DENIALS = ("UnauthorizedOperation", "AccessDenied")


def is_denial(text: str) -> bool:
    """An error's text says that a permission is missing, and not that the credential as a whole is no good."""
    return text.startswith(_DENIALS)


def encoded_in(message: str) -> str:
    """The coded part of a message, which only sts:DecodeAuthorizationMessage can read; "" when there is none."""
    found = _ENCODED.search(message)
    return found[1] if found else ""


def without_code(message: str) -> str:
    """The message without its coded part, which is a kilobyte that tells people nothing."""
    return _ENCODED.sub("", message)


def decoded(told: str) -> str:
    """What sts:DecodeAuthorizationMessage answered, in the words of messages that are not coded.

    Args:
        told: the decoded message, a JSON document; "" is returned for anything else.
    """
    try:
        document = json.loads(told)
        context = document["context"]
        action, resource = str(context["action"]), str(context.get("resource", "*"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    why = "an explicit deny" if document.get("explicitDeny") else "no policy that allows it"
    return f"not authorized to perform: {action} on resource: {resource} because of {why}"


def missing_in(text: str, asked: str) -> str:
    """The action that a denial is about, with its resource where that is not everything; else the call's own."""
    found = _NAMED.search(text)
    if not found:
        return asked
    resource = (found[2] or "").rstrip(".")
    return found[1] if resource in ("", "*") else f"{found[1]} on {resource}"
