"""The chart as Helm renders it, for values of a test's own."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.servers import unavailable

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "pointsman"
HELM = ROOT / ".tools" / "kubernetes" / "bin" / "helm"
KUBERNETES = "1.34.0"
RELEASE, NAMESPACE = "pm", "models"

Object = dict[str, Any]
Values = Mapping[str, Any]

SMALL: Values = {
    "config": {
        "log": "kafka://kafka:9092",
        "redis": "redis://valkey:6379/0",
        "objects": "s3://bucket/pointsman",
        "deployments": {"light": {"backend": "echo", "model": "m", "tier": "light"}},
    },
    "workers": [{"backend": "echo"}],
}


def helm(*arguments: str, values: Values | None = None) -> "subprocess.CompletedProcess[str]":
    """Run it, with the values as a file would give them."""
    if not HELM.exists():
        unavailable("there is no Helm: `make kubernetes` builds it")
    given = ["--values", "-"] if values is not None else []
    return subprocess.run(
        [HELM, *arguments, *given],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def template(values: Values) -> "subprocess.CompletedProcess[str]":
    """`helm template`, whatever comes of it."""
    return helm("template", RELEASE, str(CHART), "-n", NAMESPACE, "--kube-version", KUBERNETES, values=values)


def rendered(values: Values) -> list[Object]:
    """All that the chart makes, hooks and tests included."""
    return [each for each in yaml.load_all(_text(json.dumps(values)), Loader=yaml.CSafeLoader) if each]


@cache
def _text(values: str) -> str:
    done = template(json.loads(values))
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(values: Values) -> str:
    """Why Helm does not take them."""
    done = template(values)
    assert done.returncode != 0, "Helm took it"
    return done.stderr


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """By name, without the release's."""
    found = [each for each in objects if each["kind"] == kind]
    return {each["metadata"]["name"].removeprefix(f"{RELEASE}-pointsman-"): each for each in found}


def pods(objects: list[Object]) -> dict[str, Object]:
    """The specifications of all pods, by kind and name of what makes them."""
    found = {}
    for each in objects:
        name = f"{each['kind']}/{each['metadata']['name']}"
        match each["kind"]:
            case "Deployment" | "StatefulSet" | "Job":
                found[name] = each["spec"]["template"]["spec"]
            case "Pod":
                found[name] = each["spec"]
    return found


def containers(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """All containers, with the names of their pods' makers and their own."""
    for name, pod in pods(objects).items():
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            yield f"{name}/{container['name']}", container


def merged(base: Values, change: Values) -> dict[str, Any]:
    """The base with the change in it, section by section, as Helm would."""
    both = dict(base)
    for name, value in change.items():
        there = both.get(name)
        is_section = isinstance(there, Mapping) and isinstance(value, Mapping)
        both[name] = merged(there, value) if is_section else value  # type: ignore[arg-type]
    return both


def settings_of(objects: list[Object]) -> Object:
    """What the ConfigMap tells our processes."""
    [config] = [
        each for each in objects if each["kind"] == "ConfigMap" and each["metadata"]["name"] == f"{RELEASE}-pointsman"
    ]
    loaded: Object = yaml.safe_load(config["data"]["pointsman.yaml"])
    return loaded
