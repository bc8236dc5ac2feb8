"""What the chart promises of everything that it renders, over values as operators have them."""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.check import Level, check
from gateway.settings import Settings, load
from tests.chart.charts import (
    CHART,
    KUBERNETES,
    SMALL,
    Object,
    Values,
    containers,
    helm,
    merged,
    of_kind,
    pods,
    refused,
    rendered,
    settings_of,
)
from tests.chart.matrix import BEDROCK, GPU, GUIDE, MATRIX, SECURE, SHIPPING, TRIAL
from tools.chart.__main__ import PLACE

every_case = pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)


@every_case
def test_lint_finds_nothing(values: Values) -> None:
    done = helm("lint", "--strict", str(CHART), "--kube-version", KUBERNETES, values=values)

    assert done.returncode == 0, done.stdout + done.stderr


@every_case
def test_every_container_is_bounded_and_may_do_nothing_but_its_work(values: Values) -> None:
    objects = rendered(values)

    for name, container in containers(objects):
        resources, security = container["resources"], container["securityContext"]
        assert resources["requests"].keys() == resources["limits"].keys() == {"cpu", "memory"}, name
        assert security["allowPrivilegeEscalation"] is False, name
        assert security["readOnlyRootFilesystem"] is True, name
        assert security["runAsNonRoot"] is True, name
        assert security["capabilities"] == {"drop": ["ALL"]}, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
    for name, pod in pods(objects).items():
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["runAsUser"] > 0, name
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["enableServiceLinks"] is False, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), name


@every_case
def test_everything_that_keeps_running_is_probed_and_has_time_to_end(values: Values) -> None:
    for name, pod in pods(rendered(values)).items():
        if not name.startswith(("Deployment/", "StatefulSet/")):
            continue
        assert pod["terminationGracePeriodSeconds"] >= 30, name
        for container in pod["containers"]:
            assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys(), name
            if name.startswith("Deployment/"):
                [port] = container["ports"]
                assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": port["containerPort"]}
                assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port["containerPort"]}


@every_case
def test_what_the_processes_read_is_what_they_take(values: Values) -> None:
    objects = rendered(values)
    environ = {name: "x" for name in values.get("secretEnv", {})}
    [config] = [each for each in objects if each["kind"] == "ConfigMap" and "pointsman.yaml" in each["data"]][:1]

    for name, container in containers(objects):
        if not name.startswith("Deployment/"):
            continue
        given = {each["name"]: each.get("value", "x") for each in container["env"]}
        settings = _loaded(config["data"], {**environ, **given})
        assert [each for each in check(settings) if each.level is Level.ERROR] == [], name
        assert not settings.is_embedded
        assert settings.kafka_servers


@every_case
def test_no_secret_is_in_an_argument_a_variable_or_a_config_map(values: Values) -> None:
    objects = rendered(values)

    for name, container in containers(objects):
        for variable in container.get("env", []):
            looks_secret = re.search("PASSWORD|SECRET|KEY", variable["name"]) is not None
            assert ("value" not in variable) == (variable["name"] in _secret_names(values) or looks_secret), name
        assert not re.search("password|secret", json.dumps(container.get("args", [])), re.IGNORECASE), name
    assert not of_kind(objects, "Secret")


@every_case
def test_all_labels_select_what_they_shall(values: Values) -> None:
    objects = rendered(values)
    made = {
        name: each["spec"]["template"]["metadata"]["labels"]
        for kind in ("Deployment", "StatefulSet")
        for name, each in of_kind(objects, kind).items()
    }

    def selected(labels: dict[str, str]) -> set[str]:
        return {name for name, own in made.items() if labels.items() <= own.items()}

    for kind in ("Deployment", "StatefulSet"):
        for name, each in of_kind(objects, kind).items():
            assert selected(each["spec"]["selector"]["matchLabels"]) == {name}
    for name, each in of_kind(objects, "Service").items():
        assert selected(each["spec"]["selector"]) == {name}
    for name, each in of_kind(objects, "PodDisruptionBudget").items():
        assert selected(each["spec"]["selector"]["matchLabels"]) == {name}
    for name, each in of_kind(objects, "NetworkPolicy").items():
        assert selected(each["spec"]["podSelector"]["matchLabels"]) == {name}


@every_case
def test_what_is_named_is_there(values: Values) -> None:
    """A pod of a hook comes before the release: it may need only what is a hook as well, or is there already."""
    objects = rendered(values)
    hooks = {_id(each) for each in objects if "helm.sh/hook" in each["metadata"].get("annotations", {})}
    made = {_id(each) for each in objects}

    for each in objects:
        pod = pods([each]).get(_id(each))
        if pod is None:
            continue
        needed = {
            f"ConfigMap/{volume['configMap']['name']}" for volume in pod.get("volumes", []) if "configMap" in volume
        }
        claims = [
            volume["persistentVolumeClaim"]["claimName"]
            for volume in pod.get("volumes", [])
            if "persistentVolumeClaim" in volume
        ]
        needed |= {f"PersistentVolumeClaim/{claim}" for claim in claims if claim != "existing"}
        if "serviceAccountName" in pod and pod["serviceAccountName"] != "existing":
            needed.add(f"ServiceAccount/{pod['serviceAccountName']}")
        assert needed <= (hooks if _id(each) in hooks else made), _id(each)


def test_every_secret_and_object_of_the_guides_commands_is_one_of_its_values() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    made = set(re.findall(r"^kubectl create secret generic ([\w-]+) ", guide, re.MULTILINE))
    named = set(re.findall(r"(?:exec|port-forward) (\w+/[\w-]+) ", guide))

    secrets = set(re.findall(r'"secret": "([\w-]+)"', json.dumps(MATRIX["values.yaml of the guide"])))
    objects = {_id(each) for each in rendered(MATRIX["trial.yaml of the guide"])}
    assert made == secrets
    long = {"deploy": "Deployment", "svc": "Service"}
    assert named and {f"{long[kind]}/{name}" for kind, _, name in (each.partition("/") for each in named)} <= objects


def test_a_change_of_the_settings_rolls_every_pod() -> None:
    def checksums(values: Values) -> set[str]:
        deployments = of_kind(rendered(values), "Deployment").values()
        return {each["spec"]["template"]["metadata"]["annotations"]["checksum/config"] for each in deployments}

    first = checksums(SMALL)

    assert len(first) == 1
    assert checksums(SMALL) == first
    assert checksums(merged(SMALL, {"http": {"replicas": 7}})) == first
    assert not checksums(merged(SMALL, {"config": {"http": {"sync_wait_s": 60}}})) & first
    assert not checksums(merged(SMALL, {"prices": {"demo": {"input": "1"}}})) & first


def test_there_is_one_deployment_for_each_process_that_the_settings_need() -> None:
    assert of_kind(rendered(SMALL), "Deployment").keys() == {"http", "sweeper", "worker-echo"}
    assert of_kind(rendered(MATRIX["all backends"]), "Deployment").keys() == {
        "http",
        "sweeper",
        "inbox",
        "worker-echo",
        "worker-gpu",
        "worker-gpu-spot",
        "worker-sagemaker",
        "worker-bedrock",
        "collector-sagemaker",
        "collector-bedrock",
    }


@pytest.mark.parametrize(
    ("further", "has_one"), [({}, False), ({"shipping": SHIPPING}, True), ({"videos": "s3://bucket/films"}, True)]
)
def test_bedrock_has_a_collector_only_where_jobs_end_later(further: Values, has_one: bool) -> None:
    deployment = {**BEDROCK, "bedrock": {"region": "eu-central-1", **further}}
    workers = [{"backend": "echo"}, {"backend": "bedrock"}]
    values = merged(SMALL, {"config": {"deployments": {"b": deployment}}, "workers": workers})

    assert ("collector-bedrock" in of_kind(rendered(values), "Deployment")) == has_one


def test_who_calls_aws_has_the_image_that_can() -> None:
    def images(values: Values) -> dict[str, str]:
        deployments = of_kind(rendered(values), "Deployment")
        return {name: each["spec"]["template"]["spec"]["containers"][0]["image"] for name, each in deployments.items()}

    plain = images(MATRIX["all backends"])
    pinned = {"image": {"repository": "r/pm", "digest": "sha256:" + "2" * 64}, "awsImage": {"repository": "r/aws"}}
    ours = images(merged(MATRIX["all backends"], pinned))

    assert plain["http"] == plain["worker-gpu"] == "pointsman:0.1.0"
    assert plain["worker-sagemaker"] == plain["collector-sagemaker"] == "pointsman-aws:0.1.0"
    assert plain["worker-bedrock"] == "pointsman-aws:0.1.0-ours"
    assert plain["collector-bedrock"] == "pointsman-aws@sha256:" + "1" * 64
    assert ours["http"] == "r/pm@sha256:" + "2" * 64
    assert ours["worker-sagemaker"] == "r/aws:0.1.0"


def test_a_section_without_settings_is_one_that_is_not_there() -> None:
    empty = dict.fromkeys(("http", "worker", "kafka", "board", "tenants"))

    settings = settings_of(rendered(merged(SMALL, {"config": {**empty, "deployments": {"light": {"timeouts": None}}}})))

    assert settings["worker"] == {"drain_s": 300}


def test_beside_a_release_each_change_has_a_setup_of_its_own() -> None:
    def name(values: Values) -> str:
        [job] = of_kind(rendered(values), "Job").values()
        assert "annotations" not in job["metadata"]
        return str(job["metadata"]["name"])

    assert name(TRIAL) == name(TRIAL)
    assert name(TRIAL) != name(merged(TRIAL, {"podLabels": {"a": "b"}}))


def test_a_role_of_aws_is_that_of_the_process_that_calls_it() -> None:
    accounts = of_kind(rendered(MATRIX["all backends"]), "ServiceAccount")
    roles = {name: each["metadata"].get("annotations") for name, each in accounts.items()}

    assert roles["worker-bedrock"] == {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/models"}
    assert roles["worker-gpu"] is None


def test_the_grace_of_a_pod_follows_from_the_longest_call() -> None:
    def graces(values: Values) -> tuple[int, int, int]:
        objects = rendered(values)
        worker = of_kind(objects, "Deployment")["worker-echo"]["spec"]["template"]["spec"]
        settings = settings_of(objects)
        return worker["terminationGracePeriodSeconds"], settings["pod_grace_s"], settings["worker"]["drain_s"]

    assert graces(SMALL) == (360, 360, 300)
    assert graces(MATRIX["long calls"]) == (2160, 2160, 1800)
    assert graces(merged(SMALL, {"config": {"worker": {"drain_s": 900}}})) == (920, 920, 900)
    assert graces(merged(SMALL, {"config": {"pod_grace_s": 1000}})) == (1000, 1000, 300)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"config": {"pod_grace_s": 300}}, "must be at least 360 s"),
        ({"config": {"worker": {"drain_s": 600}, "pod_grace_s": 610}}, "must be at least 620 s"),
        ({"workers": [{"backend": "echo", "terminationGracePeriodSeconds": 60}]}, "it needs 360 s"),
        ({"http": {"preStopSeconds": 60, "terminationGracePeriodSeconds": 60}}, "it needs 375 s"),
    ],
)
def test_too_short_a_grace_is_refused(change: Values, why: str) -> None:
    assert why in refused(merged(SMALL, change))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"config": {"log": "streams:"}}, "config.log must be kafka://"),
        ({"config": {"redis": "embedded"}}, "config.redis must be redis://"),
        ({"config": {"objects": "file:"}}, "which all pods see"),
        ({"workers": [{"backend": "gpu"}]}, "such a worker has nothing to do"),
        ({"config": {"deployments": {"g": GPU}}}, "its jobs would wait for ever"),
        ({"workers": [{"backend": "echo"}, {"backend": "echo"}]}, "give them names of their own"),
        ({"trial": {"kafka": {"enabled": True}}}, "keep one"),
        ({"trial": {"valkey": {"enabled": True}}}, "keep one"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name must name one"),
        ({"mounts": {"ca": {"path": "/tls"}}}, "mounts.ca needs a secret or a configMap"),
        ({"env": {"AWS_SECRET_ACCESS_KEY": "x"}}, "looks like a secret"),
        ({"env": {"A": "x"}, "secretEnv": {"A": {"secret": "s", "key": "k"}}}, "is in env and in secretEnv"),
        ({"config": {"redis": "redis://:hunter2@valkey:6379/0"}}, "has a password in it"),
        ({"config": {"redis": "redis://:${REDIS_PASSWORD}@valkey:6379/0"}}, "names the variable REDIS_PASSWORD"),
        (
            {"config": {"deployments": {"light": {"api_key": "sk-live"}}}},
            "config.deployments.light.api_key is a secret",
        ),
        ({"config": {"tenants": {"a": {"webhook_secret": "whsec_x"}}}}, "config.tenants.a.webhook_secret is a secret"),
        (
            {"config": {"tenants": {"a": {"webhooks": {"w": {"url": "https://x", "secret": "whsec_x"}}}}}},
            "config.tenants.a.webhooks.w.secret is a secret",
        ),
    ],
)
def test_what_cannot_work_or_would_leak_is_refused(change: Values, why: str) -> None:
    assert why in refused(merged(SMALL, change))


def test_there_must_be_something_to_run() -> None:
    assert "there is nothing to run" in refused({**SMALL, "config": {**SMALL["config"], "deployments": {}}})


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"replicaCount": 3}, "replicaCount"),
        ({"http": {"replica": 3}}, "replica"),
        ({"workers": [{"backend": "echo", "kedda": {}}]}, "kedda"),
        ({"workers": [{"backend": "vertex"}]}, "vertex|backend"),
        ({"workers": []}, "workers"),
        ({"workerDefaults": {"keda": {"lags": 3}}}, "lags"),
        ({"config": {"wroker": {}}}, "wroker"),
        ({"config": {"deployments": {"light": {"tier": None}}}}, "tier"),
        ({"config": {"worker": {"drian_s": 3}}}, "drian_s"),
        ({"config": {"deployments": {"light": {"timeout": {}}}}}, "timeout"),
        ({"config": {"tenants": {"a": {"limits": {"rpm": 1}}}}}, "rpm"),
        ({"http": {"resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": None}}}}, "memory"),
        ({"http": {"replicas": 0}}, "replicas"),
        ({"http": {"port": 70000}}, "port"),
        ({"secretEnv": {"A": {"secret": "s"}}}, "key"),
        ({"secretEnv": {"A-B": {"secret": "s", "key": "k"}}}, "A-B"),
        ({"mounts": {"tmp": {"secret": "s", "path": "/x"}}}, "tmp"),
        ({"runAsUser": 0}, "runAsUser"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"httpRoute": {"enabled": True}}, "parentRefs"),
        ({"ingress": {"host": "x"}}, "host"),
        ({"trial": {"redis": {"enabled": True}}}, "redis"),
    ],
)
def test_values_that_the_chart_does_not_know_are_refused_by_name(change: Values, key: str) -> None:
    told = refused(merged(SMALL, change))

    assert "values don't meet the specifications of the schema" in told
    assert re.search(key, told), told


def test_no_section_of_the_schema_takes_keys_that_it_does_not_know() -> None:
    open_ones = list(_open(json.loads(PLACE.read_text(encoding="utf-8")), ""))

    assert open_ones == []


def test_every_lane_is_scaled_by_what_waits_in_it_and_for_how_long() -> None:
    values = merged(
        MATRIX["scaled"],
        {
            "config": {
                "kafka": {"prefix": "pm."},
                "deployments": {
                    "light": {"modalities": ["text", "image"]},
                    "heavy": {"backend": "echo", "model": "m", "tier": "heavy"},
                },
            }
        },
    )
    [scaled] = of_kind(rendered(values), "ScaledObject").values()
    triggers = [(each["type"], each["metadata"]) for each in scaled["spec"]["triggers"]]
    lanes = ["echo.image.light", "echo.text.heavy", "echo.text.light"]

    assert [each["topic"] for kind, each in triggers if kind == "kafka"] == [
        f"pm.jobs.{lane}.{queue}" for lane in lanes for queue in ("interactive", "standard", "bulk", "overflow")
    ]
    assert {each["consumerGroup"] for kind, each in triggers if kind == "kafka"} == {"pm.workers.echo"}
    assert [each["url"] for kind, each in triggers if kind == "metrics-api"] == [
        f"http://pm-pointsman-sweeper.models.svc:4002/scale/{lane}" for lane in lanes
    ]


def test_what_scales_a_deployment_is_not_overruled_by_an_upgrade() -> None:
    deployments = of_kind(rendered(MATRIX["scaled"]), "Deployment")

    assert "replicas" not in deployments["http"]["spec"]
    assert "replicas" not in deployments["worker-echo"]["spec"]
    assert deployments["sweeper"]["spec"]["replicas"] == 2


def test_as_it_comes_workers_go_up_1_3_6_10() -> None:
    [scaled] = of_kind(rendered(MATRIX["scaled"]), "ScaledObject").values()
    up = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleUp"]
    [pods_, percent] = [policy["value"] for policy in up["policies"]]
    steps = [1]
    while steps[-1] < scaled["spec"]["maxReplicaCount"]:
        most = max(steps[-1] + pods_, steps[-1] * (100 + percent) // 100)
        steps.append(min(most, scaled["spec"]["maxReplicaCount"]))

    assert up["selectPolicy"] == "Max"
    assert steps == [1, 3, 6, 10]


def test_keda_logs_in_as_the_worker_does() -> None:
    objects = rendered(MATRIX["scaled and secure"])
    [login] = of_kind(objects, "TriggerAuthentication").values()
    [scaled] = of_kind(objects, "ScaledObject").values()
    worker = of_kind(objects, "Deployment")["worker-gpu"]["spec"]["template"]["spec"]["containers"][0]
    variables = {each["name"]: each for each in worker["env"]}
    named = {each["parameter"]: variables[each["name"]] for each in login["spec"]["env"]}

    assert {each["containerName"] for each in login["spec"]["env"]} == {worker["name"]}
    assert named["username"]["value"] == "pointsman"
    assert named["password"]["valueFrom"] == {"secretKeyRef": {"name": "pointsman", "key": "kafka"}}
    assert login["spec"]["secretTargetRef"] == [{"parameter": "ca", "name": "kafka-ca", "key": "ca.crt"}]
    kafka = scaled["spec"]["triggers"][0]
    assert kafka["authenticationRef"]["name"] == login["metadata"]["name"]
    assert (kafka["metadata"]["tls"], kafka["metadata"]["sasl"]) == ("enable", "scram_sha512")


def test_only_the_api_is_shown_outside() -> None:
    objects = rendered(MATRIX["doors"])
    [ingress] = of_kind(objects, "Ingress").values()
    [route] = of_kind(objects, "HTTPRoute").values()

    assert [path["path"] for rule in ingress["spec"]["rules"] for path in rule["http"]["paths"]] == ["/v1"]
    assert [match["path"]["value"] for rule in route["spec"]["rules"] for match in rule["matches"]] == ["/v1"]


def test_walls_let_in_whom_they_shall_and_nobody_else() -> None:
    def peers(values: Values, name: str) -> Any:
        [rule] = of_kind(rendered(values), "NetworkPolicy")[name]["spec"]["ingress"]
        return rule.get("from")

    ours = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "pointsman", "app.kubernetes.io/instance": "pm"}}}
    walls = MATRIX["walls"]
    monitors, clients = walls["networkPolicy"]["monitors"], walls["networkPolicy"]["clients"]

    assert peers(walls, "sweeper") == [ours, *monitors]
    assert peers(walls, "worker-echo") == [ours, *monitors]
    assert peers(walls, "http") == [ours, *monitors, *clients]
    assert peers(merged(SMALL, {"networkPolicy": {"enabled": True}}), "http") is None
    assert peers(merged(TRIAL, {"networkPolicy": {"enabled": True}}), "kafka") == [ours]


def test_rules_and_boards_are_whole() -> None:
    objects = rendered(MATRIX["watched"])
    [rules] = of_kind(objects, "PrometheusRule").values()
    boards = [
        json.loads(content)
        for each in of_kind(objects, "ConfigMap").values()
        if each["metadata"]["labels"].get("grafana_dashboard") == "1"
        for content in each["data"].values()
    ]

    assert all(rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"])
    assert len({board["uid"] for board in boards}) == len(boards) >= 4


def test_alerts_lead_to_where_an_operator_shows_the_runbooks() -> None:
    shown = {"prometheusRule": {"runbooks": "https://wiki.example.com/pointsman/"}}
    [rules] = of_kind(rendered(merged(MATRIX["watched"], shown)), "PrometheusRule").values()
    pages = [rule["annotations"]["runbook_url"] for group in rules["spec"]["groups"] for rule in group["rules"]]

    assert pages and all(re.fullmatch(r"https://wiki\.example\.com/pointsman/[a-z-]+\.md", page) for page in pages)


def test_servers_for_a_trial_are_off_unless_asked_for() -> None:
    assert not of_kind(rendered(SMALL), "StatefulSet")
    assert of_kind(rendered(TRIAL), "StatefulSet").keys() == {"kafka", "valkey"}


def test_the_topics_are_made_before_anything_is_rolled_out_and_bad_settings_stop_it() -> None:
    [job] = of_kind(rendered(SECURE_WITH_KEYS), "Job").values()
    pod = job["spec"]["template"]["spec"]

    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade,pre-rollback"
    assert [each["args"] for each in [*pod["initContainers"], *pod["containers"]]] == [
        ["check"],
        ["topics", "--create"],
        ["keys", "adopt", "--tenant", "default", "--name", "ci"],
    ]


SECURE_WITH_KEYS = merged(
    merged(SMALL, SECURE), {"setup": {"apiKeys": [{"secret": "pointsman", "key": "api-key", "name": "ci"}]}}
)


def _secret_names(values: Values) -> set[str]:
    return set(values.get("secretEnv", {}))


def _id(each: Object) -> str:
    return f"{each['kind']}/{each['metadata']['name']}"


def _loaded(data: dict[str, str], environ: dict[str, str]) -> Settings:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in data.items():
            (Path(folder) / name).write_text(content, encoding="utf-8")
        return load(Path(folder) / "pointsman.yaml", environ)


def _open(schema: Any, path: str) -> Iterator[str]:
    """Objects with properties that take others as well."""
    if isinstance(schema, dict):
        is_condition = path.endswith(("/if", "/then"))
        if "properties" in schema and not is_condition and schema.get("additionalProperties") is not False:
            yield path
        for name, each in schema.items():
            yield from _open(each, f"{path}/{name}")
    elif isinstance(schema, list):
        for index, each in enumerate(schema):
            yield from _open(each, f"{path}/{index}")
