"""docker-compose.yml is what the Compose specification allows, and what we promise about it."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway import settings
from tests.servers import unavailable

ROOT = Path(__file__).resolve().parents[2]
CHECKER = ROOT / ".tools" / "compose-check"
COMPOSE = ROOT / "docker-compose.yml"
CONFIG = "/config/pointsman.yaml"

Service = Mapping[str, Any]


def test_the_compose_file_is_one() -> None:
    done = _check(COMPOSE)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("healthcheck:", "healtcheck:"),
        ('ports: ["127.0.0.1:4000:4000"]', "ports: 4000"),
        ("condition: service_healthy", "condition: service_well"),
    ],
)
def test_a_broken_compose_file_is_refused(tmp_path: Path, right: str, wrong: str) -> None:
    text = COMPOSE.read_text(encoding="utf-8")
    assert right in text
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(text.replace(right, wrong), encoding="utf-8")

    done = _check(broken)

    assert done.returncode != 0
    assert "validating" in done.stderr


def test_every_service_that_is_waited_for_is_there_and_can_tell_that_it_is_ready() -> None:
    services = _services()
    waited_for = {
        (name, needed["condition"]) for each in services.values() for name, needed in each.get("depends_on", {}).items()
    }

    assert {name for name, _ in waited_for} <= services.keys()
    for name, condition in waited_for:
        assert (condition == "service_healthy") == ("healthcheck" in services[name]), name


def test_everything_that_keeps_running_has_a_health_check() -> None:
    running = {name: each for name, each in _services().items() if each["restart"] != "no"}

    assert running.keys() == {"kafka", "valkey", "gateway", "worker", "inbox", "sweeper"}
    assert all("healthcheck" in each for each in running.values())


def test_all_processes_of_ours_are_one_image_that_may_write_nowhere_but_to_its_volume() -> None:
    ours = _ours()

    assert ours.keys() == {"topics", "gateway", "worker", "inbox", "sweeper"}
    assert len({each["image"] for each in ours.values()}) == 1
    assert all(each["read_only"] and each["cap_drop"] == ["ALL"] for each in ours.values())


def test_ports_are_published_on_this_machine_only() -> None:
    published = [port for each in _services().values() for port in each.get("ports", [])]

    assert published
    assert all(port["host_ip"] == "127.0.0.1" for port in published)


def test_every_image_has_a_version() -> None:
    images = {each["image"] for name, each in _services().items() if name not in _ours()}

    assert all(any(digit.isdigit() for digit in image.rpartition(":")[2]) for image in images), images


def test_every_process_of_ours_starts_with_settings_that_load() -> None:
    for name, each in _ours().items():
        environment = {key: str(value) for key, value in each["environment"].items()}
        mounted = {mount["target"]: mount["source"] for mount in each["volumes"] if mount["type"] == "bind"}

        loaded = settings.load(Path(mounted[environment["POINTSMAN_CONFIG"]]), environment)

        assert environment["POINTSMAN_CONFIG"] == CONFIG
        assert not loaded.is_embedded, name
        assert loaded.kafka_servers == ("kafka:9092",)
        assert all(deployment.price for deployment in loaded.deployments_by_name().values())


def _check(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    if not CHECKER.exists():
        unavailable("no Compose checker: `make test` builds it where Go is installed")
    # Only what the checker needs: MODEL_URL and COMPOSE_* of the person who tests are not part of the file.
    environment = {"PATH": os.environ["PATH"]}
    return subprocess.run(
        [CHECKER, *options, file], capture_output=True, text=True, timeout=30, check=False, cwd=ROOT, env=environment
    )


def _services() -> dict[str, Service]:
    done = _check(COMPOSE, "--format", "json")
    assert done.returncode == 0, done.stderr
    services: dict[str, Service] = json.loads(done.stdout)["services"]
    return services


def _ours() -> dict[str, Service]:
    return {name: each for name, each in _services().items() if each["image"].startswith("pointsman")}
