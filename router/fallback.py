"""Where a job goes on when its deployment fails: which are left, and the job with its new route. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from policies.deployments import Deployment
from policies.retries import Failure
from router.job import Alternative, Job


def alternatives(job: Job, failure: Failure, deployments: Mapping[str, Deployment]) -> Sequence[Alternative]:
    """What takes the job after this failure, in the order of its route; the larger windows first if it was too long.

    A deployment that is not in the settings any more takes nothing.
    """
    left = [
        each
        for each in job.route.left
        if each.fallback.deployment in deployments and (each.fallback.on is None or failure in each.fallback.on)
    ]
    if failure is not Failure.TOO_LONG:
        return left
    here = deployments.get(job.route.deployment)
    window = here.window if here is not None else 0
    # A window may be a default that nobody has set: one that is not known to be larger comes last, a smaller one never.
    larger = [each for each in left if deployments[each.fallback.deployment].window > window]
    return larger + [each for each in left if deployments[each.fallback.deployment].window == window]


def moved(job: Job, to: Alternative, deployments: Mapping[str, Deployment], *, attempts: int, why: str) -> Job:
    """The job at its next deployment, after so many attempts in all."""
    target, route = deployments[to.fallback.deployment], job.route
    return replace(
        job,
        estimate=to.estimate,
        is_reserved=False,  # what the door had reserved was for the first attempt
        route=replace(
            route,
            deployment=target.name,
            backend=target.backend,
            tier=target.tier,
            reasons=(*route.reasons, f"fallback: {route.deployment} {why}"),
            left=tuple(each for each in route.left if each is not to),
            tried=(*route.tried, route.deployment),
            spent=attempts,
        ),
    )
