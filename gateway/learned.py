"""What `pointsman router fit|versions|rollback|replay` do. Apart from the commands, because it loads numpy."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from gateway import wiring
from gateway.settings import Settings
from router import fitting
from router.fitting import Better, NotBetter, TooFew
from router.gain import Correction, shipped
from router.lessons import Lesson
from router.replay import Way, replay
from router.versions import Version, Versions


@dataclass(frozen=True, slots=True)
class Fitted:
    """What came of it, and the number under which it is used from now on."""

    verdict: Better | NotBetter | TooFew
    number: int | None


async def fit(settings: Settings, tenant: str, *, dry: bool) -> Fitted:
    """Learn from a tenant's outcomes, and use what was learned if it is better."""
    async with wiring.core(settings) as core:
        lessons = [lesson async for lesson in core.lessons.read(tenant)]
        verdict = fitting.fit(fitting.rows_of(lessons), shipped())
        if dry or not isinstance(verdict, Better):
            return Fitted(verdict, None)
        about = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "rows": verdict.rows,
            "gain": round(verdict.before + verdict.more, 5),
            "gain_before": round(verdict.before, 5),
        }
        return Fitted(verdict, await Versions(core.scripts).put(tenant, fitting.dump(verdict.correction), about))


async def versions(settings: Settings, tenant: str) -> list[Version]:
    """The tenant's, the newest first."""
    async with wiring.core(settings) as core:
        return await Versions(core.scripts).all(tenant)


async def use(settings: Settings, tenant: str, number: int | None) -> int | None:
    """Use that version; with None the one before that in use, or none. None when it is not there."""
    async with wiring.core(settings) as core:
        kept = Versions(core.scripts)
        if number is None:
            found = await kept.all(tenant)
            used = next((each.number for each in found if each.is_used), 0)
            number = next((each.number for each in found if each.number < used), 0)
        return number if await kept.use(tenant, number) else None


async def replayed(settings: Settings, policy: Settings, tenant: str, since: float) -> Mapping[str, object]:
    """Both ways of the tenant's scored jobs since that moment."""
    async with wiring.core(settings) as core:
        kept = Versions(core.scripts)
        used = next((each.number for each in await kept.all(tenant) if each.is_used), 0)
        raw = await kept.correction(tenant, used) if used else None
        correction: Correction | None = fitting.load(raw) if raw else None
        lessons: list[Lesson] = [lesson async for lesson in core.lessons.read(tenant, since=since)]
    found = replay(
        lessons,
        policy.tenants_by_name()[tenant],
        before=settings.deployments_by_name(),
        after=policy.deployments_by_name(),
        weights=shipped(),
        correction=correction,
    )
    return {"jobs": len(lessons), "moved": found.moved, "was": _way(found.was), "would_be": _way(found.would_be)}


def _way(way: Way) -> Mapping[str, object]:
    return {
        "heavy_percent": round(100 * way.heavy / way.jobs, 1) if way.jobs else None,
        "usd": f"{way.usd:.6f}",
        "unpriced": way.unpriced,
        "outcomes": way.known,
        "quality": round(way.quality / way.known, 3) if way.known else None,
    }
