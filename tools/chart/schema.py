"""What `helm install` takes: each key by name, so that a misspelt one is refused and not ignored."""

from typing import Any

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from gateway.settings import Settings
from gateway.settings_env import Entries, Node, node_of

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
ONE_OR_MORE: Schema = {"type": "integer", "minimum": 1}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
SECONDS: Schema = {"type": "integer", "minimum": 1, "maximum": 86_400}
TEXTS: Schema = {"type": "array", "items": TEXT}
LABELS: Schema = {"type": "object", "additionalProperties": TEXT}
VARIABLE = "^[A-Za-z_][A-Za-z0-9_]*$"
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", "maxLength": 40}
QUANTITY: Schema = {"type": ["string", "integer", "number"], "pattern": "^[0-9.]+(m|[kMGTP]i?)?$"}
OF_KUBERNETES: Schema = {"type": "object"}  # its own schema is the API server's business
LIST_OF_KUBERNETES: Schema = {"type": "array", "items": OF_KUBERNETES}
BACKEND: Schema = {"enum": ["gpu", "bedrock", "sagemaker", "echo"]}

ENV: Schema = {
    "type": "object",
    "propertyNames": {"pattern": VARIABLE},
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}


def section(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """An object that knows all its keys."""
    known = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**known, "required": list(required)} if required else known


SECRET_KEY = section(("secret", "key"), secret={**TEXT, "minLength": 1}, key={**TEXT, "minLength": 1})
SECRET_ENV: Schema = {"type": "object", "propertyNames": {"pattern": VARIABLE}, "additionalProperties": SECRET_KEY}
AMOUNTS = section(("cpu", "memory"), cpu=QUANTITY, memory=QUANTITY)
RESOURCES = section(("requests", "limits"), requests=AMOUNTS, limits=AMOUNTS)
IMAGE = section(
    repository=TEXT,
    tag=TEXT,
    digest={"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
)
OWN_IMAGE = section(**{name: each for name, each in IMAGE["properties"].items() if name != "pullPolicy"})
PLACEMENT: dict[str, Schema] = {
    "nodeSelector": LABELS,
    "tolerations": LIST_OF_KUBERNETES,
    "affinity": OF_KUBERNETES,
    "priorityClassName": TEXT,
}
OWN: dict[str, Schema] = {
    "port": PORT,
    "env": ENV,
    "secretEnv": SECRET_ENV,
    "image": OWN_IMAGE,
    "serviceAccount": section(annotations=LABELS),
    "podAnnotations": LABELS,
    **PLACEMENT,
    "terminationGracePeriodSeconds": {"type": "integer", "minimum": 1, "maximum": 8000},
    "resources": RESOURCES,
}
KEDA = section(
    enabled=FLAG,
    minReplicas=COUNT,
    maxReplicas=ONE_OR_MORE,
    pollingSeconds=SECONDS,
    lag=ONE_OR_MORE,
    oldestSeconds=ONE_OR_MORE,
    stepSeconds={**SECONDS, "maximum": 1800},
    addPods=ONE_OR_MORE,
    addPercent=ONE_OR_MORE,
    calmSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    downSeconds={**SECONDS, "maximum": 1800},
    cooldownSeconds={"type": "integer", "minimum": 0, "maximum": 86_400},
    fallbackReplicas=COUNT,
    sweeperUrl={"type": "string", "pattern": "^(https?://.+)?$"},
)
WORKER = section(
    ("backend",), backend=BACKEND, name={**NAME, "pattern": f"{NAME['pattern']}|^$"}, replicas=COUNT, keda=KEDA, **OWN
)


def schema() -> Schema:
    """Of values.yaml."""
    values = section(
        nameOverride=TEXT,
        fullnameOverride=TEXT,
        **{"global": OF_KUBERNETES},  # Helm gives it to every chart
        image=IMAGE,
        awsImage=OWN_IMAGE,
        imagePullSecrets={"type": "array", "items": section(("name",), name=TEXT)},
        config=_settings(Settings),
        prices=OF_KUBERNETES,
        env=ENV,
        secretEnv=SECRET_ENV,
        externalSecrets={"type": "array", "items": _external_secret()},
        mounts={
            "type": "object",
            "propertyNames": {"pattern": NAME["pattern"], "not": {"enum": ["config", "data", "tmp"]}},
            "additionalProperties": section(
                ("path",), secret=TEXT, configMap=TEXT, path={"type": "string", "pattern": "^/.+"}
            ),
        },
        data=section(
            existingClaim=TEXT,
            create=FLAG,
            size=QUANTITY,
            storageClass=TEXT,
            accessModes={"type": "array", "items": {"enum": ["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]}},
        ),
        serviceAccount=section(create=FLAG, name=TEXT, annotations=LABELS),
        bindAddress={"type": "string", "minLength": 1},
        podAnnotations=LABELS,
        podLabels=LABELS,
        **PLACEMENT,
        runAsUser={"type": "integer", "minimum": 1},
        topologySpread=section(enabled=FLAG, whenUnsatisfiable={"enum": ["ScheduleAnyway", "DoNotSchedule"]}),
        disruptionBudget=section(
            enabled=FLAG,
            maxUnavailable={"anyOf": [ONE_OR_MORE, {"type": "string", "pattern": "^[1-9][0-9]?%$"}]},
        ),
        http=_http(),
        workers={"type": "array", "minItems": 1, "items": WORKER},
        workerDefaults=section(port=PORT, resources=RESOURCES, keda=KEDA),
        collectors=section(
            replicas=ONE_OR_MORE,
            port=PORT,
            resources=RESOURCES,
            backends={"type": "object", "propertyNames": BACKEND, "additionalProperties": section(**OWN)},
        ),
        inbox=section(enabled=FLAG, replicas=ONE_OR_MORE, **OWN),
        sweeper=section(replicas=ONE_OR_MORE, **OWN),
        setup=section(
            resources=RESOURCES,
            deadlineSeconds=SECONDS,
            apiKeys={
                "type": "array",
                "items": section(("secret", "key"), **SECRET_KEY["properties"], tenant=TEXT, name=TEXT),
            },
        ),
        test=section(apiKey=section(secret=TEXT, key=TEXT), model=TEXT, deadlineSeconds=SECONDS),
        **_doors(),
        trial=section(kafka=_server(), valkey=_server()),
    )
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **values}


def _settings(model: type[BaseModel]) -> Schema:
    """Names, and which must be there: `pointsman check` looks at the values, and says more about them."""
    needed = tuple(name for name, known in model.model_fields.items() if known.is_required())
    return section(needed, **{name: _setting(known) for name, known in model.model_fields.items()})


def _setting(known: FieldInfo) -> Schema:
    of_section = _node(node_of(known))
    if any(isinstance(each, BeforeValidator) for each in known.metadata) and of_section:  # or shorter, as text
        return {"anyOf": [of_section, TEXT, {"type": "null"}]}
    if not of_section:
        return {"not": {"type": "null"}} if known.is_required() else {}
    return {**of_section, "type": ["object", "null"]}


def _node(node: Node) -> Schema:
    match node:
        case FieldInfo():
            return {}
        case Entries(of):
            each = {} if of is None else {**_settings(of), "type": ["object", "null"]}
            return {"type": "object", "additionalProperties": each}
        case model:
            return _settings(model)


def _http() -> Schema:
    return section(
        replicas=ONE_OR_MORE,
        preStopSeconds=COUNT,
        autoscaling=section(
            enabled=FLAG,
            minReplicas=ONE_OR_MORE,
            maxReplicas=ONE_OR_MORE,
            cpuPercent={"type": "integer", "minimum": 1, "maximum": 100},
        ),
        service=section(
            type={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
            port=PORT,
            annotations=LABELS,
        ),
        **OWN,
    )


def _external_secret() -> Schema:
    remote = section(("key",), key=TEXT, property=TEXT, version=TEXT)
    return section(
        ("name", "store", "data"),
        name=TEXT,
        store=section(("name",), name=TEXT, kind={"enum": ["SecretStore", "ClusterSecretStore"]}),
        refreshInterval=TEXT,
        data={"type": "object", "minProperties": 1, "additionalProperties": remote},
    )


def _doors() -> dict[str, Schema]:
    path: Schema = {"type": "string", "pattern": "^/"}
    return {
        "ingress": section(enabled=FLAG, className=TEXT, annotations=LABELS, hosts=TEXTS, tlsSecret=TEXT, path=path),
        "httpRoute": {
            **section(enabled=FLAG, parentRefs=LIST_OF_KUBERNETES, hostnames=TEXTS, path=path, annotations=LABELS),
            "if": {"properties": {"enabled": {"const": True}}},
            "then": {"properties": {"parentRefs": {"minItems": 1}}},
        },
        "networkPolicy": section(
            enabled=FLAG, clients=LIST_OF_KUBERNETES, monitors=LIST_OF_KUBERNETES, egress=LIST_OF_KUBERNETES
        ),
        "serviceMonitor": section(enabled=FLAG, interval=TEXT, labels=LABELS),
        "prometheusRule": section(enabled=FLAG, labels=LABELS, runbooks=TEXT),
        "dashboards": section(enabled=FLAG, labels=LABELS),
    }


def _server() -> Schema:
    return section(enabled=FLAG, image=TEXT, storage=QUANTITY, resources=RESOURCES)
