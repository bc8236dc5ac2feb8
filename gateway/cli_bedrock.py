"""What `pointsman check --backend bedrock` finds: credentials, access to the models, prices, quotas, retries."""

from collections.abc import Iterator

from gateway import wiring
from gateway.check import Finding, Level
from gateway.settings import Settings
from policies.deployments import Deployment

BURNS = "claude"  # models of that family count output several times


async def findings(settings: Settings) -> list[Finding]:
    """One for each fault. A token of each model is made, and paid for. Raises `SettingsError` without litellm."""
    ours = {name: each for name, each in settings.deployments_by_name().items() if each.bedrock is not None}
    if not ours:
        return [Finding(Level.WARNING, "deployments", "none of them is on bedrock")]
    found = [finding for each in ours.values() for finding in _of_settings(each)]
    for name, trouble in await wiring.bedrock_troubles(ours):
        found.append(Finding(Level.ERROR, f"deployments.{name}", trouble))
    return found


def _of_settings(deployment: Deployment) -> Iterator[Finding]:
    at, limits = f"deployments.{deployment.name}", deployment.limits
    if deployment.price is None:
        yield Finding(Level.WARNING, f"{at}.price", "none for this tier: its jobs' dollars are unknown, never 0")
    missing = [name for name in ("requests_per_minute", "tokens_per_minute") if getattr(limits, name) is None]
    if missing:
        yield Finding(
            Level.WARNING,
            f"{at}.limits",
            f"{' and '.join(missing)} not set: Bedrock will refuse calls that a quota here would have held back",
        )
    if BURNS in deployment.model and limits.tokens_per_minute is not None and limits.output_burndown == 1:
        yield Finding(
            Level.WARNING,
            f"{at}.limits.output_burndown",
            "is 1, and newer models of this family count output five times: see the model's quotas",
        )
