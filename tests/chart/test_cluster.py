"""The chart on a real API server with real controllers: installed, changed, set back, removed."""

import httpx2
import pytest
import yaml

from tests.chart.charts import SMALL, Values, merged, template
from tests.chart.matrix import MATRIX
from tests.chart.releases import Release
from tools.kubernetes.api import RefusedError, Thing, eventually, has_condition
from tools.kubernetes.control_plane import ControlPlane

PATIENCE_S = 30.0
OWN = {
    *(f"ClusterRole {name}" for name in ("admin", "cluster-admin", "edit", "view")),
    "ClusterRoleBinding cluster-admin",
    "ServiceAccount default",
    "ConfigMap kube-root-ca.crt",
}
CHECKSUM = "checksum/config"
# Everything at once that a release can hold, but for trial servers.
FULL: Values = merged(
    SMALL,
    {
        "workers": [{"backend": "echo", "keda": {"enabled": True}}],
        "http": {"autoscaling": {"enabled": True}},
        "inbox": {"enabled": True},
        "ingress": {"enabled": True, "hosts": ["api.example.com"]},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]},
        "networkPolicy": {"enabled": True},
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
        "data": {"create": True, "storageClass": "kwok-volume"},
        "externalSecrets": [{"name": "s", "store": {"name": "aws"}, "data": {"k": {"key": "prod/pointsman"}}}],
    },
)


def test_an_install_becomes_ready_and_an_uninstall_leaves_nothing_behind(release: Release) -> None:
    before = _lasting(release)
    release.install(FULL)
    deployments = release.things("deployments")
    assert {"pm-pointsman-http", "pm-pointsman-sweeper", "pm-pointsman-inbox"} < _names(deployments)
    eventually(lambda: _all_available(release), within=PATIENCE_S, what="every deployment is available")
    assert "ScaledObject pm-pointsman-worker-echo" in _lasting(release)

    release.remove()
    eventually(lambda: _lasting(release) == before, within=PATIENCE_S, what=f"nothing left but {sorted(before)}")


def test_changed_settings_roll_all_pods_and_the_same_settings_none(release: Release) -> None:
    release.install(SMALL)
    first = _checksums(release)
    names = _names(release.pods())
    assert len(set(first.values())) == 1 and first

    release.upgrade(SMALL)
    assert _names(release.pods()) == names, "an upgrade without a change started pods anew"

    release.upgrade(_changed(SMALL))
    eventually(lambda: not names & _names(release.pods()), within=PATIENCE_S, what="no pod of before is left")
    assert set(first.values()).isdisjoint(_checksums(release).values())
    eventually(lambda: _all_available(release), within=PATIENCE_S, what="every deployment is available")


def test_a_rollback_brings_back_settings_and_pods(release: Release) -> None:
    release.install(SMALL)
    first, settings = _checksums(release), _settings(release)
    release.upgrade(_changed(SMALL))
    assert _settings(release) != settings

    release.rollback(1)
    assert _settings(release) == settings
    eventually(
        lambda: set(_checksums(release).values()) == set(first.values()), within=PATIENCE_S, what="the first pods"
    )


@pytest.mark.parametrize("case", MATRIX)
def test_a_server_takes_every_object_of_every_combination(case: str, plane: ControlPlane, namespace: str) -> None:
    """With the definitions of KEDA, the Prometheus operator, the Gateway API and External Secrets; strictly."""
    done = template(MATRIX[case])
    assert done.returncode == 0, done.stderr
    texts = [text for text in done.stdout.split("\n---\n") if yaml.safe_load(text) is not None]
    assert len(texts) > 5
    for text in texts:
        plane.api.apply(text, namespace=namespace, dry_run=True)


def test_a_server_refuses_what_it_does_not_know(plane: ControlPlane, namespace: str) -> None:
    """So that the test above can fail: both in an object of Kubernetes and in one of KEDA."""
    texts = template(MATRIX["scaled"]).stdout.split("\n---\n")
    for kind in ("Deployment", "ScaledObject"):
        [text, *_] = (each for each in texts if f"\nkind: {kind}\n" in each)
        with pytest.raises(RefusedError, match="misspelt: field not declared in schema"):
            plane.api.apply(text.replace("\nspec:\n", "\nspec:\n  misspelt: 1\n"), namespace=namespace, dry_run=True)


def test_http_pods_follow_their_cpu(release: Release, metrics: str) -> None:
    """The controller that counts and the deployment are real; what the pods use is not. It may double them in 30 s."""
    release.install(merged(SMALL, {"http": {"autoscaling": {"enabled": True, "minReplicas": 2, "maxReplicas": 6}}}))
    load = 4 * 500 * 0.7  # millicores: four pods of half a core, each as busy as it should be

    def shared(pods: int) -> bool:
        """Whether so many have it by now. Pods that are there share it evenly."""
        names = _names(_of(release.pods(), "http"))
        httpx2.put(
            f"{metrics}/_double/{release.namespace}", json=dict.fromkeys(names, int(load / len(names))), verify=False
        )
        return len(names) == pods

    eventually(lambda: shared(4), within=2 * PATIENCE_S, what="as many pods as the load needs")
    [scaler] = release.things("horizontalpodautoscalers", group="autoscaling/v2")
    assert has_condition(scaler, "AbleToScale") and has_condition(scaler, "ScalingActive")


def _of(pods: list[Thing], component: str) -> list[Thing]:
    return [pod for pod in pods if pod["metadata"]["labels"]["app.kubernetes.io/component"] == component]


def _changed(values: Values) -> Values:
    return merged(values, {"config": {"tenants": {"default": {"result_ttl_s": 7200}}}})


def _names(things: list[Thing]) -> set[str]:
    return {each["metadata"]["name"] for each in things}


def _checksums(release: Release) -> dict[str, str]:
    """Of the settings that each pod was started with."""
    return {pod["metadata"]["name"]: pod["metadata"]["annotations"][CHECKSUM] for pod in release.pods()}


def _settings(release: Release) -> Thing:
    [found] = [each for each in release.things("configmaps", group="v1") if each["metadata"]["name"] == "pm-pointsman"]
    data: Thing = found["data"]
    return data


def _lasting(release: Release) -> set[str]:
    """What is neither a note of what happened nor Kubernetes' own, some of which a young server makes late."""
    found = release.plane.api.everything(release.namespace)
    return {
        each for each in found if not each.startswith(("Event ", "ClusterRole system:", "ClusterRoleBinding system:"))
    } - OWN


def _all_available(release: Release) -> bool:
    return all(has_condition(each, "Available") for each in release.things("deployments"))
