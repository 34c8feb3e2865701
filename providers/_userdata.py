"""User data that a cloud would not take is refused before anything is sent. PURE."""

from __future__ import annotations

from meshd.errors import InvalidRequest
from meshd.provider_api import LaunchRequest, ProviderName


def check_user_data(request: LaunchRequest, most_b: int, provider: ProviderName) -> None:
    """Refuse user data of more than `most_b` bytes.

    Raises:
        InvalidRequest: with both sizes.
    """
    size_b = len(request.user_data.encode())
    if size_b > most_b:
        text = f"user data of {size_b} bytes; at most {most_b} can be given to a machine of {provider}"
        raise InvalidRequest(text, provider=provider, operation="launch")
