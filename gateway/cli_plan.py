"""`pointsman plan`: what the limits of a deployment carry, and its time-outs as one chain."""

from dataclasses import dataclass

from gateway.settings import Settings, SettingsError
from policies.concurrency import Concurrency, concurrency
from policies.deployments import Deployment

USUAL_S = 10.0  # where neither the settings nor the command say how long a call takes
USUAL_INPUT = 1_000  # tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """Of one deployment. Seconds and tokens; `chain` are its time-outs, each to be shorter than the next."""

    deployment: str
    seconds: float
    reserved: int
    concurrency: Concurrency
    limit: int | None
    chain: tuple[tuple[str, float], ...]

    def values(self) -> dict[str, object]:
        """As JSON."""
        return {
            "deployment": self.deployment,
            "seconds": self.seconds,
            "reserved_tokens": self.reserved,
            "by_requests": _rounded(self.concurrency.by_requests),
            "by_tokens": _rounded(self.concurrency.by_tokens),
            "max_concurrency": _rounded(self.concurrency.most),
            "configured": self.limit,
            "timeouts": dict(self.chain),
        }


def plans(
    settings: Settings, name: str | None, *, seconds: float | None, input_tokens: int | None, output_tokens: int | None
) -> list[Plan]:
    """Of one deployment, or of all. Raises `SettingsError`."""
    deployments = settings.deployments_by_name()
    if name is not None and name not in deployments:
        raise SettingsError(f"there is no deployment {name!r}; there are {', '.join(deployments) or 'none'}")
    wanted = deployments.values() if name is None else [deployments[name]]
    return [_plan(each, settings.pod_grace_s, seconds, input_tokens, output_tokens) for each in wanted]


def lines(plan: Plan) -> list[str]:
    """For people."""
    found = plan.concurrency
    return [
        f"{plan.deployment}: a call takes {plan.seconds:g} s and {plan.reserved} tokens are reserved for it",
        f"  by requests      {_shown(found.by_requests)}",
        f"  by tokens        {_shown(found.by_tokens)}",
        f"  max_concurrency  {_shown(found.most)} (limits.concurrency: {plan.limit or 'not set'})",
        f"  time-outs        {' < '.join(f'{name} {length:g}' for name, length in plan.chain)} s",
    ]


def _shown(value: float | None) -> str:
    return "no limit" if value is None else f"{value:.2f}"


def _plan(
    deployment: Deployment, grace_s: float, seconds: float | None, given_input: int | None, given_output: int | None
) -> Plan:
    length = seconds or deployment.typical_s or USUAL_S
    output = deployment.max_output if given_output is None else given_output
    reserved = (USUAL_INPUT if given_input is None else given_input) + output
    timeouts = deployment.timeouts
    return Plan(
        deployment.name,
        length,
        reserved,
        concurrency(deployment.limits, seconds=length, reserved=reserved),
        deployment.limits.concurrency,
        (
            ("connect", timeouts.connect),
            ("first token", timeouts.first_token),
            ("read", timeouts.read),
            ("total", timeouts.total),
            ("pod grace", grace_s),
        ),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
