"""Puts on the dead letters what nobody can run."""

from router import deadletters, topics
from router.log import Delivery, Log


async def bury(log: Log, delivery: Delivery, reason: str, detail: str) -> None:
    """Put a record on `jobs.dead`. Raises `LogUnavailableError`: then it is not done, and this may run again."""
    letter = deadletters.to_record(
        delivery.record, topic=delivery.topic, position=delivery.position, reason=reason, detail=detail
    )
    await log.append(topics.DEAD, letter)
