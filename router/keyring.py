"""API keys that outlive Redis: each change of one is on the log as well, as its hash."""

from dataclasses import dataclass

from policies.keys import ApiKey, ApiKeys, NewKey
from router import topics
from router.log import Log, Record


@dataclass(frozen=True, slots=True)
class Keyring:
    """Makes and ends keys. Raises what Redis' and the log's calls raise; then do it again."""

    keys: ApiKeys
    log: Log

    async def create(self, tenant: str, name: str) -> NewKey:
        """See `ApiKeys.create`; it returns once the hash is on the log."""
        made = await self.keys.create(tenant, name)
        await self._note(made.id)
        return made

    async def adopt(self, text: str, tenant: str, name: str) -> str:
        """See `ApiKeys.adopt`."""
        made = await self.keys.adopt(text, tenant, name)
        await self._note(made)
        return made

    async def revoke(self, id: str) -> bool:
        """See `ApiKeys.revoke`."""
        is_known = await self.keys.revoke(id)
        if is_known:
            await self._note(id)
        return is_known

    async def restore(self) -> int:
        """Bring back what the log knows of; what was revoked stays so. Returns how many keys had changed."""
        latest: dict[str, ApiKey] = {}
        async for delivery in self.log.read(topics.KEYS):
            key = ApiKey.from_bytes(delivery.record.value)
            known = latest.get(key.id)
            if known is None or not known.revoked:
                latest[key.id] = key
        return sum([await self.keys.restore(key) for key in latest.values()])

    async def _note(self, id: str) -> None:
        key = await self.keys.get(id)
        if key is not None:
            await self.log.append(topics.KEYS, Record(key.to_bytes(), {"version": "1", "id": id}))
