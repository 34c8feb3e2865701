"""Lists that come in pages: their end is reached, or the list is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from meshd.errors import Transient

T = TypeVar("T")

PAGES_MAX: Final = 1000


def until_end(pages: Iterable[T], *, provider: str, operation: str, most: int = PAGES_MAX) -> Iterator[T]:
    """The pages, one by one.

    Args:
        pages: as the SDK fetches them.
        provider: its name in errors.
        operation: the call's name in errors.
        most: so many pages a list may have: far more than any account's.

    Raises:
        Transient: there are more: a list without its end is no list.
    """
    for number, page in enumerate(pages):
        if number >= most:
            raise Transient(f"the list has more than {most} pages", provider=provider, operation=operation)
        yield page
