"""What the tailnet's API tells of the auth key for new machines. A machine rented with a dead key is money for nothing:
it can never join.
"""

from __future__ import annotations

from meshd.tailnet.admin import AuthKey, KeyApi
from meshd.tailnet.keys import AuthKeySource
from meshd.tailnet.keystore import key_id_of


async def current_key(keys: AuthKeySource, api: KeyApi) -> AuthKey | None:
    """The record of the key that new machines get; None when the API does not know it, which proves nothing.

    Raises:
        TailnetError: the API or the key cannot be read.
    """
    key_id = key_id_of(await keys.current())  # keys of other control servers may look otherwise: not looked up
    return await api.get_key(key_id) if key_id else None


def dead_key(record: AuthKey | None) -> str:
    """Why the key is no good; "" when it is good or the API does not tell."""
    return f"the auth key {record.id} is expired or revoked" if record is not None and not record.valid else ""
