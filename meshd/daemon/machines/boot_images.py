"""The port to who knows the baked images."""

from __future__ import annotations

from typing import Protocol

from meshd.provider_api import Offer


class BootImages(Protocol):
    """Says from which image a machine boots, and notes images that do not serve."""

    def image_for(self, offer: Offer) -> str:
        """The id of the image that a machine of this offer boots from; "" for the cloud's own."""
        ...

    def refused(self, provider: str, image: str, words: str) -> None:
        """No machine could be made from an image: others boot from another one for a while. `words` are the cloud's."""
        ...


class NoImages:
    """There are none."""

    def image_for(self, offer: Offer) -> str:
        """See BootImages."""
        return ""

    def refused(self, provider: str, image: str, words: str) -> None:
        """See BootImages."""


NO_IMAGES = NoImages()
