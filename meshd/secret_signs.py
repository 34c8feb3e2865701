"""Signs by which a text is a secret, so that it is neither kept where everybody reads it nor shown. PURE.

Forms are the vendors' own: tailscale.com/kb/1277/key-secret-prefixes (`tskey-`, `hskey-` of headscale), AWS's IAM
identifiers and 40-character secret keys, Google's service account keys, RunPod's `rpa_`, Lambda's `secret_`.
"""

from __future__ import annotations

import re

_FORMS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("a private key", re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY")),
    ("a Tailscale key", re.compile(r"\bts(?:key|cli)-\w")),
    ("a headscale key", re.compile(r"\bhskey-\w")),
    ("an AWS secret key", re.compile(r"(?<![A-Za-z0-9/+=])(?=[A-Za-z0-9/+]*[A-Z])(?=[A-Za-z0-9/+]*[a-z])"
                                     r"(?=[A-Za-z0-9/+]*\d)[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])")),
    ("a RunPod key", re.compile(r"\brp(?:a|s)_[A-Za-z0-9]{20,}")),
    ("a Lambda key", re.compile(r"\bsecret_[A-Za-z0-9_-]{16,}")),
    ("a Google API key", re.compile(r"\bAIza[A-Za-z0-9_-]{30,}")),
    ("a GitHub token", re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,})")),
    ("a Hugging Face token", re.compile(r"\bhf_[A-Za-z0-9]{20,}")),
    ("a key of an API", re.compile(r"\bsk-[A-Za-z0-9_-]{20,}")),
    ("a web token", re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.")),
    ("a webhook's URL", re.compile(r"\bhooks\.slack\.com/(?:services|workflows|triggers)/\w")),
    ("a URL with a password", re.compile(r"://[^/\s:@]+:[^/\s@]+@")),
)  # fmt: skip
_NAME = re.compile(r"(^|[_-])(api_?key|auth_?key|access_?key|private_?key|secret|token|passw(or)?d|credential|"
                   r"service_account)s?($|[_-])", re.I)  # fmt: skip
_HARMLESS = re.compile(r"_(file|id|name|ttl_s|user)$|^oauth_client_id$", re.I)


def sign_of(text: str) -> str:
    """What kind of secret a text looks like, e.g. "a Tailscale key"; "" for none."""
    return next((kind for kind, form in _FORMS if form.search(text)), "")


def names_secret(key: str) -> bool:
    """Whether a key's name says that its value is a secret: `api_key`, but not `api_key_file`."""
    return bool(_NAME.search(key)) and not _HARMLESS.search(key)
