"""A service account's key in the form of Google's console."""

from __future__ import annotations

import json
from functools import lru_cache

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

PROJECT = "sandbox-project"


@lru_cache(maxsize=1)
def private_key() -> str:
    """An RSA key in PEM, the same for the whole process.

    Google's keys have 2048 bits. Loading one checks the primes, which takes as long as the rest of an adapter's start.
    """
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505  it guards nothing
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def service_account() -> str:
    """The key as JSON. The SDK signs tokens with it, so it never calls `token_uri`."""
    return json.dumps(
        {
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": "0123456789abcdef",
            "private_key": private_key(),
            "client_email": f"meshd@{PROJECT}.iam.gserviceaccount.com",
            "token_uri": "http://127.0.0.1:9/token",
        }
    )
