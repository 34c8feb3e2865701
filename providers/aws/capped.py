"""Answers of AWS are read up to a size. The SDK by itself reads all that comes, and parses it in ten times as much."""

from __future__ import annotations

from typing import Any, Final

from botocore.exceptions import ResponseStreamingError

ANSWER_MAX_B: Final = 64 * 1024 * 1024
"""A page of 1,000 instances is 3 MB."""
_PART_B: Final = 64 * 1024


def cap_answers(client: Any, most_b: int | None = None) -> None:
    """Have a client give up an answer that is larger than `most_b` bytes (ANSWER_MAX_B).

    The SDK has a hook for sending, and none for reading: so its own session sends, and the body is read here.
    """
    session = client._endpoint.http_session

    def send(request: Any, **_: Any) -> Any:
        limit_b = ANSWER_MAX_B if most_b is None else most_b
        request.stream_output = True  # else the session reads all of it at once
        response = session.send(request)
        parts, size_b = [], 0
        for part in response.raw.stream(_PART_B):
            size_b += len(part)
            if size_b > limit_b:
                response.raw.close()
                raise ResponseStreamingError(error=f"the answer is larger than {limit_b} bytes")
            parts.append(part)
        response._content = b"".join(parts)
        return response

    client.meta.events.register("before-send", send)
