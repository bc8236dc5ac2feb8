"""A worker that wakes a fleet: at a real API server, with the rights that the chart gives it and no others."""

from pathlib import Path

import aiohttp
import pytest
import structlog

from consumers.gpu.waking import wake
from policies.fleets import Waker
from tests.chart.charts import SMALL, Values
from tests.chart.matrix import GPU
from tests.chart.releases import Release
from tools.kubernetes.api import Thing

DEPLOYMENTS = ("vllm", "other")


@pytest.fixture
def account(release: Release, tmp_path: Path) -> Path:
    """What the worker's pod finds in its folder for the service account, two deployments of replicas beside it."""
    for name in DEPLOYMENTS:
        release.plane.api.create(f"/apis/apps/v1/namespaces/{release.namespace}/deployments", _deployment(name))
    release.install(_values(release.namespace))
    [worker] = [each for each in release.things("deployments") if each["metadata"]["name"] == "pm-pointsman-worker-gpu"]
    pod = worker["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"], "the pod finds no token"

    accounts = f"/api/v1/namespaces/{release.namespace}/serviceaccounts"
    issued = release.plane.api.create(f"{accounts}/{pod['serviceAccountName']}/token", {"spec": {}})
    (tmp_path / "token").write_text(issued["status"]["token"], encoding="ascii")
    trusted = release.plane.api.get(f"/api/v1/namespaces/{release.namespace}/configmaps/kube-root-ca.crt")
    (tmp_path / "ca.crt").write_text(trusted["data"]["ca.crt"], encoding="ascii")
    return tmp_path


async def test_the_named_deployment_is_scaled_and_no_other(release: Release, account: Path) -> None:
    async with aiohttp.ClientSession() as session:
        with structlog.testing.capture_logs() as logs:
            for name in DEPLOYMENTS:
                waker = Waker(release.plane.url, scale=(release.namespace, name, 2))
                await wake(session, waker, "light", account=account)
    assert [(each["log_level"], each["status"]) for each in logs] == [("info", 200), ("warning", 403)]
    replicas = {each["metadata"]["name"]: each["spec"]["replicas"] for each in release.things("deployments")}
    assert (replicas["vllm"], replicas["other"]) == (2, 0)


async def test_replicas_that_are_wanted_already_are_not_taken_away(release: Release, account: Path) -> None:
    async with aiohttp.ClientSession() as session:
        for count in (3, 2):
            assert await wake(
                session, Waker(release.plane.url, scale=(release.namespace, "vllm", count)), "light", account=account
            )
    assert {each["metadata"]["name"]: each["spec"]["replicas"] for each in release.things("deployments")}["vllm"] == 3


async def test_only_workers_that_wake_something_have_a_token(release: Release, account: Path) -> None:
    mounted = {
        each["metadata"]["name"]
        for each in release.things("deployments")
        if each["spec"]["template"]["spec"].get("automountServiceAccountToken", True)
    }
    assert mounted - set(DEPLOYMENTS) == {"pm-pointsman-worker-gpu"}


def _deployment(name: str) -> Thing:
    labels = {"app": name}
    container = {"name": "engine", "image": "engine"}
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def _values(namespace: str) -> Values:
    wake_it = {"url": "https://kubernetes.default.svc", "namespace": namespace, "deployment": "vllm", "replicas": 2}
    fleet = {"dns": "http://vllm.models:8000", "wake": wake_it}
    light = {**{name: value for name, value in GPU.items() if name != "url"}, "replicas": fleet}
    spare = SMALL["config"]["deployments"]["light"]
    return {
        **SMALL,
        "config": {**SMALL["config"], "deployments": {"light": light, "spare": spare}},
        "workers": [{"backend": "gpu"}, {"backend": "echo"}],
    }
