"""`pointsman sagemaker`, and what `pointsman check --backend sagemaker` finds."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from consumers.aws.sagemaker_scaling import Scaling, reasons, scaling
from gateway import wiring
from gateway.check import Finding, Level
from gateway.settings import Settings, SettingsError, load
from policies.deployments import Deployment, SageMaker

app = typer.Typer(no_args_is_help=True, help="SageMaker endpoints.")

ConfigOption = Annotated[Path | None, typer.Option("--config", help="The settings file; POINTSMAN_CONFIG else.")]


@app.callback()
def sagemaker() -> None:
    """SageMaker endpoints."""


@app.command("scaling")
def scaling_command(
    endpoint: Annotated[str, typer.Argument(help="A deployment of the settings, or its endpoint's name.")],
    variant: Annotated[str, typer.Option(help="The endpoint's variant.")] = "AllTraffic",
    most: Annotated[int, typer.Option(min=1, max=1000, help="Instances at most.")] = 1,
    backlog_per_instance: Annotated[
        float, typer.Option(min=0.1, max=100_000, help="Calls that one instance is to have before it.")
    ] = 5.0,
    apply: Annotated[bool, typer.Option("--apply", help="Tell AWS; else it is only shown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The plan as one JSON object.")] = False,
    config: ConfigOption = None,
) -> None:
    """How an asynchronous endpoint scales to zero and back: both policies that this needs, with the reasons."""
    try:
        settings = load(config, dict(os.environ))
        deployment, place = _asked(settings, endpoint)
        plan = scaling(
            deployment.model,
            variant,
            most=most,
            backlog_per_instance=backlog_per_instance,
            invocation_timeout_s=place.invocation_timeout_s,
        )
        if apply:
            wiring.apply_scaling(plan, place)
    except SettingsError as error:
        _fail(str(error))
    why = reasons(plan, invocation_timeout_s=place.invocation_timeout_s)
    if as_json:
        typer.echo(json.dumps({"applied": apply, "reasons": why, **_calls(plan)}))
        return
    for name, arguments in _calls(plan).items():
        typer.echo(f"{name} {json.dumps(arguments)}")
    for line in why:
        typer.echo(f"# {line}")
    typer.echo("# Applied." if apply else "# Nothing was changed; --apply does it.")


def findings(settings: Settings) -> Iterator[Finding]:
    """What is wrong with the endpoints of all deployments. Raises `SettingsError` without AWS' library."""
    for name, deployment in settings.deployments_by_name().items():
        if deployment.sagemaker is not None:
            for trouble in wiring.preflight(deployment, deployment.sagemaker).troubles():
                yield Finding(
                    Level.ERROR if trouble.is_error else Level.WARNING, f"deployments.{name}", trouble.message
                )


def _asked(settings: Settings, endpoint: str) -> tuple[Deployment, SageMaker]:
    ours = {
        name: (each, each.sagemaker)
        for name, each in settings.deployments_by_name().items()
        if each.sagemaker is not None
    }
    if endpoint in ours:
        found = ours[endpoint]
    else:
        named = [pair for pair in ours.values() if pair[0].model == endpoint]
        if not named:
            known = ", ".join(sorted(ours)) or "none"
            raise SettingsError(
                f"deployments: none on sagemaker is or has the endpoint {endpoint!r}; there are {known}"
            )
        found = named[0]
    if found[1].is_realtime:
        raise SettingsError(f"{endpoint} is a synchronous endpoint, which has no backlog to scale by")
    return found


def _calls(plan: Scaling) -> dict[str, object]:
    """By the names of AWS' own calls."""
    return {
        "register_scalable_target": plan.target,
        "put_scaling_policy": plan.tracking,
        "put_scaling_policy (first instance)": plan.step,
        "put_metric_alarm": plan.alarm,
    }


def _fail(message: str) -> NoReturn:
    typer.echo(f"pointsman: {message}", err=True)
    raise typer.Exit(1)
