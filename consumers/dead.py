"""Dead letters: what nobody can run, with its bytes untouched and the reason beside them."""

from router import topics
from router.log import Delivery, Log, Record

LONGEST_DETAIL = 2000


async def bury(log: Log, delivery: Delivery, reason: str, detail: str) -> None:
    """Put a record on `jobs.dead`. Raises `LogUnavailableError`: then it is not done, and this may run again."""
    headers = {name: value for name, value in delivery.record.headers.items() if name != "authorization"}
    headers |= {
        "dead-reason": reason,
        "dead-detail": detail[:LONGEST_DETAIL],
        "dead-topic": delivery.topic,
        "dead-position": delivery.position,
    }
    await log.append(topics.DEAD, Record(delivery.record.value, headers))
