"""Kafka and Valkey of a trial: a real one takes what the chart tells them."""

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.chart.charts import Object, of_kind, rendered
from tests.chart.matrix import TRIAL
from tests.servers import a_valkey, unavailable
from tools.kafka.broker import HOST, JAVA, LIB, finds_a_coordinator, free_ports, missing

START_S = 90
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
NOT_OF_THE_BROKER = {"KAFKA_HEAP_OPTS"}


@pytest.fixture(scope="module")
def servers() -> dict[str, Object]:
    """The containers of both."""
    sets = of_kind(rendered(TRIAL), "StatefulSet")
    return {name: each["spec"]["template"]["spec"]["containers"][0] for name, each in sets.items()}


def test_valkey_keeps_what_it_was_told_and_refuses_what_does_not_fit(
    servers: dict[str, Object], tmp_path: Path
) -> None:
    words = servers["valkey"]["args"]
    told = {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    assert told.pop("dir") == servers["valkey"]["volumeMounts"][0]["mountPath"]

    with (
        a_valkey(tmp_path, told) as server,
        Redis.from_url(server.connection_url, decode_responses=True) as redis,
    ):
        known: dict[str, Any] = redis.config_get("*")

    assert {name: known[name] for name in told if name != "maxmemory"} == {
        name: value for name, value in told.items() if name != "maxmemory"
    }
    assert known["maxmemory"] == str(512 * 1024 * 1024)
    assert told["appendfsync"] == "always"


def test_a_broker_starts_with_what_its_container_is_told(servers: dict[str, Object], tmp_path: Path) -> None:
    """The image makes settings of its variables: KAFKA_NODE_ID is node.id."""
    if why := missing():
        unavailable(f"there is no Kafka to test on: {why}")
    port, controller = free_ports(2)
    variables = {each["name"]: each["value"] for each in servers["kafka"]["env"]}
    moved = {"9092": str(port), "9093": str(controller), "//pm-pointsman-kafka": f"//{HOST}", "//:": f"//{HOST}:"}
    moved |= {"/var/lib/kafka/data": str(tmp_path / "data"), "@localhost": f"@{HOST}"}
    lines = []
    for name in sorted(variables.keys() - NOT_OF_THE_BROKER):
        value = variables[name]
        for there, here in moved.items():
            value = value.replace(there, here)
        lines.append(f"{name.removeprefix('KAFKA_').replace('_', '.').lower()}={value}\n")
    properties = tmp_path / "server.properties"
    properties.write_text("".join(lines), encoding="ascii")

    output = tmp_path / "output"

    with _java(output, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(properties)) as formatting:
        assert formatting.wait(START_S) == 0, output.read_text(encoding="utf-8")
    with _java(output, "kafka.Kafka", str(properties)) as broker:
        try:
            assert _is_ready(broker, port), output.read_text(encoding="utf-8")
        finally:
            broker.kill()


def _java(output: Path, *command: str) -> "subprocess.Popen[bytes]":
    with output.open("wb") as file:
        return subprocess.Popen(
            [*JAVA, "-cp", f"{LIB}/*", *command], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )


def _is_ready(broker: "subprocess.Popen[bytes]", port: int) -> bool:
    deadline = time.monotonic() + START_S
    while broker.poll() is None and time.monotonic() < deadline:
        if finds_a_coordinator(port):
            return True
        time.sleep(0.1)
    return False
