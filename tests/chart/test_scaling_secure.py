"""Real KEDA asks a real Kafka behind SASL and TLS, with the login and the certificate that the chart tells it of."""

from pathlib import Path
from typing import Any

import pytest

from router.log import Record
from router.log_kafka import KafkaLog
from tests.chart.charts import SMALL, Values, merged
from tests.chart.releases import Release
from tests.secure import USER, SecureStores, secure_stores
from tools.kubernetes.control_plane import ControlPlane

pytestmark = pytest.mark.timeout(300)

TOPICS = [f"jobs.echo.text.light.{queue}" for queue in ("interactive", "standard", "bulk", "overflow")]
RECORDS = 3


async def test_keda_reads_the_lag_of_a_kafka_that_wants_a_login(
    keda: ControlPlane, release: Release, tmp_path: Path
) -> None:
    with secure_stores(tmp_path) as stores:
        for name, held in {"pointsman": stores.password, "ca": stores.ca_file.read_text(encoding="ascii")}.items():
            secret = {"metadata": {"name": name}, "stringData": {"it": held}}
            keda.api.create(f"/api/v1/namespaces/{release.namespace}/secrets", secret)
        async with KafkaLog.connect(stores.plain_kafka, partitions=1) as log:
            await log.create(TOPICS)
            for _ in range(RECORDS):
                await log.append(TOPICS[1], Record(b"{}"))

        release.install(_values(stores))

        keda.until(lambda: len(_asked(release)) == len(TOPICS), "every topic is asked for")
        assert sorted(_asked(release)) == [0, 0, 0, RECORDS]


def _asked(release: Release) -> list[int]:
    """The lags that the autoscaler was told. There is none yet while KEDA cannot ask."""
    told: list[dict[str, Any]] = []
    for scaler in release.things("horizontalpodautoscalers", group="autoscaling/v2"):
        told += scaler.get("status", {}).get("currentMetrics") or []
    external = [each["external"] for each in told if each["type"] == "External"]
    return [int(each["current"]["averageValue"]) for each in external if "kafka" in each["metric"]["name"]]


def _values(stores: SecureStores) -> Values:
    kafka = {
        "security": "sasl_ssl",
        "username": USER,
        "password": "${KAFKA_PASSWORD}",
        "ca_file": "/tls/ca/it",
    }
    return merged(
        SMALL,
        {
            "config": {"log": f"kafka://{stores.kafka}", "kafka": kafka},
            "secretEnv": {"KAFKA_PASSWORD": {"secret": "pointsman", "key": "it"}},
            "mounts": {"ca": {"secret": "ca", "path": "/tls/ca"}},
            "workers": [{"backend": "echo", "keda": {"enabled": True, "maxReplicas": 1}}],
        },
    )
