"""Who is asking: the API key of a request."""

from collections.abc import Container

from policies.keys import ApiKeys, KeyHolder
from policies.scripts import BoardUnavailableError
from router.epoch import Epoch


class InvalidKeyError(Exception):
    """There is no key, or nobody's; the message says which, and never shows it."""


async def authenticate(keys: ApiKeys, tenants: Container[str], epoch: Epoch, header: str | None) -> KeyHolder:
    """Whose request this is, by its `Authorization` header. Raises `InvalidKeyError`, `BoardUnavailableError`."""
    if not header:
        raise InvalidKeyError("You did not provide an API key. Send it as a header: Authorization: Bearer YOUR_KEY")
    scheme, _, key = header.partition(" ")
    if scheme.lower() != "bearer":
        raise InvalidKeyError("The Authorization header must read: Bearer YOUR_KEY")
    holder = await keys.find(key.strip())
    if holder is None and epoch.fault is not None:  # it may well be somebody's: the board has lost its keys
        raise BoardUnavailableError(epoch.fault)
    if holder is None:
        raise InvalidKeyError("Incorrect API key provided. `pointsman keys create` makes one.")
    if holder.tenant not in tenants:
        raise InvalidKeyError("The tenant of this API key is not among the gateway's settings any more.")
    return holder
