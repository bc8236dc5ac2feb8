"""Values as operators have them: each must render, be valid, and keep what the chart promises."""

import re

import yaml

from tests.chart.charts import ROOT, SMALL, Values, merged

GUIDE = ROOT / "docs" / "guides" / "helm.md"
GPU = {
    "backend": "gpu",
    "model": "m",
    "tier": "light",
    "url": "http://vllm.models:8000/v1",
    "price": {"input": "0", "output": "0"},
}
SAGEMAKER = {"backend": "sagemaker", "model": "m", "tier": "heavy", "sagemaker": {"region": "eu-central-1"}}
SHIPPING = {"role": "arn:aws:iam::123456789012:role/batch", "place": "s3://bucket/batches"}
BEDROCK = {
    "backend": "bedrock",
    "model": "anthropic.claude-haiku-4-5",
    "tier": "heavy",
    "bedrock": {"region": "eu-central-1", "shipping": SHIPPING},
}
SECURE: Values = {
    "config": {
        "log": "kafka://kafka-1:9093,kafka-2:9093",
        "redis": "rediss://pointsman:${REDIS_PASSWORD}@valkey:6380/0",
        "kafka": {
            "replication": 3,
            "security": "sasl_ssl",
            "username": "pointsman",
            "password": "${KAFKA_PASSWORD}",
            "ca_file": "/tls/kafka/ca.crt",
        },
        "deployments": {"light": {**GPU, "api_key": "${GPU_KEY}"}},
    },
    "workers": [{"backend": "gpu"}],
    "secretEnv": {
        "REDIS_PASSWORD": {"secret": "pointsman", "key": "redis"},
        "KAFKA_PASSWORD": {"secret": "pointsman", "key": "kafka"},
        "GPU_KEY": {"secret": "pointsman", "key": "gpu"},
    },
    "mounts": {"kafka-ca": {"secret": "kafka-ca", "path": "/tls/kafka"}},
}
TRIAL: Values = {
    "config": {"deployments": SMALL["config"]["deployments"]},
    "workers": [{"backend": "echo"}],
    "data": {"create": True, "accessModes": ["ReadWriteOnce"]},
    "trial": {"kafka": {"enabled": True}, "valkey": {"enabled": True}},
}
PEER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}


def _of_the_guide() -> dict[str, Values]:
    """The files that it has operators write, by their names."""
    found = re.findall(r"```yaml\n# (\w+\.yaml)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return {f"{name} of the guide": yaml.safe_load(text) for name, text in found}


MATRIX: dict[str, Values] = {
    **_of_the_guide(),
    "small": SMALL,
    "trial": TRIAL,
    "secure": merged(SMALL, SECURE),
    "scaled": merged(
        SMALL, {"workers": [{"backend": "echo", "keda": {"enabled": True}}], "http": {"autoscaling": {"enabled": True}}}
    ),
    "scaled and secure": merged(SMALL, merged(SECURE, {"workers": [{"backend": "gpu", "keda": {"enabled": True}}]})),
    "all backends": merged(
        SMALL,
        {
            "config": {"deployments": {"g": GPU, "s": SAGEMAKER, "b": BEDROCK}},
            "workers": [
                {"backend": "echo"},
                {"backend": "gpu", "replicas": 5, "nodeSelector": {"pool": "models"}},
                {"backend": "gpu", "name": "gpu-spot", "tolerations": [{"key": "spot", "operator": "Exists"}]},
                {"backend": "sagemaker"},
                {
                    "backend": "bedrock",
                    "image": {"tag": "0.1.0-ours"},
                    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/models"}},
                },
            ],
            "collectors": {"backends": {"bedrock": {"image": {"digest": "sha256:" + "1" * 64}}}},
            "env": {"AWS_REGION": "eu-central-1"},
            "inbox": {"enabled": True, "replicas": 2},
        },
    ),
    "doors": merged(
        SMALL,
        {
            "ingress": {"enabled": True, "className": "nginx", "hosts": ["api.example.com"], "tlsSecret": "tls"},
            "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["api.example.com"]},
            "http": {"service": {"type": "LoadBalancer", "port": 80, "annotations": {"a": "b"}}},
        },
    ),
    "walls": merged(
        SMALL,
        {
            "networkPolicy": {
                "enabled": True,
                "clients": [{"namespaceSelector": {}}],
                "monitors": [PEER],
                "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 9092}]}],
            }
        },
    ),
    "watched": merged(
        SMALL,
        {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": True},
            "dashboards": {"enabled": True},
        },
    ),
    "external secrets": merged(
        SMALL,
        {
            "externalSecrets": [
                {
                    "name": "pointsman",
                    "store": {"name": "aws", "kind": "ClusterSecretStore"},
                    "data": {"api-key": {"key": "prod/pointsman", "property": "api-key"}},
                }
            ],
            "setup": {"apiKeys": [{"secret": "pointsman", "key": "api-key", "name": "ci"}]},
            "test": {"apiKey": {"secret": "pointsman"}},
        },
    ),
    "long calls": merged(
        SMALL,
        {
            "config": {
                "deployments": {
                    "light": {"timeouts": {"total_s": 1800}, "modalities": "text, image"},
                    "heavy": {"backend": "echo", "model": "m", "tier": "heavy"},
                }
            }
        },
    ),
    "names of its own": merged(
        SMALL,
        {
            "fullnameOverride": "gateway",
            "serviceAccount": {"create": False, "name": "existing"},
            "image": {"repository": "registry.example.com/pointsman", "digest": "sha256:" + "0" * 64},
            "imagePullSecrets": [{"name": "registry"}],
            "bindAddress": "::",
            "disruptionBudget": {"enabled": False},
            "topologySpread": {"enabled": False},
            "prices": {"version": "1", "prices": {"demo": {"input": "1", "output": "2", "source": "ours"}}},
        },
    ),
}
