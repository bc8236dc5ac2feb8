"""docker-compose.yml is what the Compose specification allows, and what we promise about it."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import settings
from tests.acceptance.refusals import Refusals
from tests.doubles import OpenAIDouble
from tests.servers import a_valkey, unavailable
from tools.kafka.broker import free_ports

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
CHECKER = ROOT / ".tools" / "compose-check"
COMPOSE = ROOT / "docker-compose.yml"
CONFIG = "/config/pointsman.yaml"
PORTS = [f"POINTSMAN_{name}_PORT" for name in ("HTTP_", "WORKER__HEALTH", "SWEEPER__HEALTH", "INBOX__HEALTH")]
PLACED = {
    f"POINTSMAN_{name}_HOST": "127.0.0.1" for name in ("HTTP_", "WORKER__HEALTH", "SWEEPER__HEALTH", "INBOX__HEALTH")
}

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

    of_ours = {"gateway", "worker", "inbox", "sweeper"}
    of_ours |= {f"{role}-{backend}" for role in ("worker", "collector") for backend in ("sagemaker", "bedrock")}
    assert running.keys() == {"kafka", "valkey", "cloud", "prometheus", "grafana"} | of_ours
    assert all("healthcheck" in each for each in running.values())


def test_without_a_profile_there_is_a_cluster_of_one_of_each() -> None:
    always = {name for name, each in _services().items() if not each.get("profiles")}

    assert always == {"kafka", "valkey", "topics", "gateway", "worker", "inbox", "sweeper"}


def test_all_processes_of_ours_are_one_of_two_images_that_may_write_nowhere_but_to_the_volume() -> None:
    ours = _ours()

    targets = {name: each["build"]["target"] for name, each in ours.items()}
    assert {name for name, target in targets.items() if target == "aws"} == {
        name for name in ours if "sagemaker" in name or "bedrock" in name or name == "cloud-setup"
    }
    assert {each["image"] for each in ours.values()} == {"pointsman:local", "pointsman-aws:local"}
    assert all(each["read_only"] and each["cap_drop"] == ["ALL"] for each in ours.values())


def test_ports_are_published_on_this_machine_only() -> None:
    published = [port for each in _services().values() for port in each.get("ports", [])]

    assert published
    assert all(port["host_ip"] == "127.0.0.1" for port in published)


def test_every_image_has_a_version() -> None:
    images = {each["image"] for name, each in _services().items() if name not in _ours()}

    assert all(any(digit.isdigit() for digit in image.rpartition(":")[2]) for image in images), images


def test_every_file_that_is_mounted_is_there() -> None:
    mounted = {
        mount["source"] for each in _services().values() for mount in each.get("volumes", []) if mount["type"] == "bind"
    }

    assert mounted
    assert all(Path(source).exists() for source in mounted), mounted


def test_what_is_scraped_are_our_processes_at_their_ports() -> None:
    scraped = yaml.safe_load((ROOT / "examples" / "prometheus.yaml").read_text(encoding="utf-8"))["scrape_configs"]
    targets = dict(target.split(":") for target in scraped[0]["static_configs"][0]["targets"])

    assert targets == {name: _port(each) for name, each in _ours().items() if "healthcheck" in each}


def test_every_process_of_ours_starts_with_settings_that_load() -> None:
    for name, each in _ours().items():
        if not each["command"]:
            continue
        environment = {key: str(value) for key, value in each["environment"].items()}
        mounted = {mount["target"]: mount["source"] for mount in each["volumes"] if mount["type"] == "bind"}

        loaded = settings.load(Path(mounted[environment["POINTSMAN_CONFIG"]]), environment)

        assert environment["POINTSMAN_CONFIG"] == CONFIG
        assert not loaded.is_embedded, name
        assert loaded.kafka_servers == ("kafka:9092",)
        assert all(deployment.price for deployment in loaded.deployments_by_name().values())


@pytest.mark.parametrize("name", [each.name for each in (ROOT / "examples").glob("compose*.yaml")])
def test_each_backend_of_the_settings_has_a_worker(name: str) -> None:
    text = yaml.safe_load((ROOT / "examples" / name).read_text(encoding="utf-8"))

    profiles = {"", name.removeprefix("compose").removesuffix(".yaml").lstrip("-")}
    started = [each for each in _ours().values() if profiles & set(each.get("profiles", [""]))]
    workers = {each["command"][-1] for each in started if each["command"] and each["command"][1] == "worker"}
    assert {each["backend"] for each in text["deployments"].values()} <= workers


def test_settings_without_a_model_run_with_a_worker_that_needs_none(tmp_path: Path) -> None:
    loaded, services = _loaded(ROOT / "examples" / "pointsman.yaml"), _services(_with(tmp_path, BACKEND="echo"))

    assert {each.backend for each in loaded.deployments_by_name().values()} == {"echo"}
    assert services["worker"]["command"] == ["serve", "worker", "--backend", "echo"]
    assert "BACKEND=echo SETTINGS=./examples/pointsman.yaml" in COMPOSE.read_text(encoding="utf-8")


def test_settings_of_ones_own_are_taken_as_they_are(tmp_path: Path) -> None:
    mine = tmp_path / "my.yaml"
    where = {"backend": "gpu", "url": "http://vllm:8000/v1", "model": "any", "tier": "light"}
    mine.write_text(json.dumps({"deployments": {"local": where, "light": where}}), encoding="utf-8")

    loaded = _loaded(mine).deployments_by_name()

    assert {name: each.url for name, each in loaded.items()} == dict.fromkeys(("local", "light"), where["url"])


def test_another_server_of_the_models_is_one_variable(tmp_path: Path) -> None:
    compose = _with(tmp_path, MODEL_URL="http://vllm:8000/v1")

    loaded = _loaded(ROOT / "examples" / "compose.yaml", compose).deployments_by_name()

    assert {each.url for each in loaded.values()} == {"http://vllm:8000/v1"}


async def test_the_services_do_what_they_are_for_when_their_commands_are_run(
    tmp_path: Path, kafka_bootstrap: str, upstream: OpenAIDouble
) -> None:
    services = _services()
    with ExitStack() as opened:
        valkey = opened.enter_context(a_valkey(tmp_path, _valkey_options(services["valkey"])))
        cloud = opened.enter_context(_moto(tmp_path))
        place = _Place(
            tmp_path,
            {
                "kafka://kafka:9092": f"kafka://{kafka_bootstrap}",
                "redis://valkey:6379/0": valkey.connection_url,
                "http://host.docker.internal:11434": upstream.url,
                "http://cloud:5000": cloud,
                "/config/moto_endpoint.py": str(ROOT / "examples" / "moto_endpoint.py"),
                "/data": str(tmp_path / "data"),
            },
        )
        place.end_with(opened)
        for name in ("cloud-setup", "topics"):
            assert place.start(name, services[name]).wait(60) == 0, place.output(name)
        names = ("gateway", "worker", "inbox", "sweeper", "worker-sagemaker", "collector-sagemaker")
        for name in names:
            place.start(name, services[name])
            await asyncio.to_thread(place.ready, name)
        key, refusals = place.run(services["gateway"], "keys", "create").split()[-1], Refusals()
        async with refusals.async_sdk(place.url("gateway"), key, max_retries=0) as sdk:
            for model, said in (("light", "Hello"), ("patient", "A real endpoint")):
                answer = await sdk.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": "Hello"}], timeout=60
                )
                assert (answer.choices[0].message.content or "").startswith(said)
        place.settings, place.instead["# shipping:"] = "compose-bedrock.yaml", "shipping:"
        assert place.start("topics", services["topics"]).wait(60) == 0, place.output("topics")
        for name in (of_bedrock := ("worker-bedrock", "collector-bedrock")):
            place.start(name, services[name])
            await asyncio.to_thread(place.ready, name)
        for name in (*names, *of_bedrock):
            assert place.stop(name) == 0, place.output(name)
    assert not refusals.all


@dataclass(slots=True)
class _Place:
    """Where services run as processes: what stands for the hosts and folders of their containers."""

    folder: Path
    instead: dict[str, str]
    settings: str = "compose-sagemaker.yaml"  # as SETTINGS names them
    running: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    def start(self, name: str, service: Service) -> "subprocess.Popen[bytes]":
        [self.ports[name]] = free_ports(1)
        with (self.folder / f"{name}.log").open("wb") as output:
            self.running[name] = subprocess.Popen(
                self._command(service, service["command"]),
                env=self._environ(service, self.ports[name]), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output,
                stderr=output,
            )  # fmt: skip
        return self.running[name]

    def run(self, service: Service, *arguments: str) -> str:
        """As `docker compose exec`."""
        done = subprocess.run(
            self._command(service, arguments),
            env=self._environ(service, 0), cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return done.stdout

    def ready(self, name: str) -> None:
        """By the path that the service's own health check asks for."""
        until = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{self.url(name)}/readyz", timeout=3):
                    return
            except OSError:
                assert self.running[name].poll() is None and time.monotonic() < until, self.output(name)
                time.sleep(0.1)

    def stop(self, name: str) -> int:
        self.running[name].terminate()
        return self.running[name].wait(40)

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")[-3000:]

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def end_with(self, opened: ExitStack) -> None:
        opened.callback(self._kill)

    def _kill(self) -> None:
        for each in self.running.values():
            each.kill()
            each.wait(10)

    def _command(self, service: Service, arguments: Sequence[str]) -> list[str]:
        if service.get("entrypoint"):
            return [sys.executable, *(self._here(word) for word in service["entrypoint"][1:]), *arguments]
        return [sys.executable, "-m", "gateway.cli", *arguments]

    def _environ(self, service: Service, port: int) -> dict[str, str]:
        own = {name: self._here(str(value)) for name, value in service["environment"].items()}
        text = self._here((ROOT / "examples" / self.settings).read_text(encoding="utf-8"))
        here = self.folder / self.settings
        here.write_text(text, encoding="utf-8")
        ports = dict.fromkeys(PORTS, str(port))
        plain = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return plain | own | ports | {"POINTSMAN_CONFIG": str(here), "PYTHONPATH": str(ROOT), **PLACED}

    def _here(self, text: str) -> str:
        for there, here in self.instead.items():
            text = text.replace(there, here)
        return text


@contextmanager
def _moto(folder: Path) -> Iterator[str]:
    [port] = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    with (folder / "moto.log").open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            until = time.monotonic() + 60
            while True:
                with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=3):
                    break
                assert server.poll() is None and time.monotonic() < until, (folder / "moto.log").read_text("utf-8")
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def _valkey_options(service: Service) -> dict[str, str]:
    words = service["command"][1:]
    return {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}


def _port(service: Service) -> str:
    [port] = re.findall(r"127\.0\.0\.1:(\d+)/readyz", " ".join(service["healthcheck"]["test"]))
    return str(port)


def _with(folder: Path, **environ: str) -> Path:
    """The Compose file as it reads where these variables are set; the checker itself looks at none."""
    text = COMPOSE.read_text(encoding="utf-8")
    for name, value in environ.items():
        text, count = re.subn(rf"\$\{{{name}:-[^}}]*\}}", value, text)
        assert count == 1, name
    changed = folder / "docker-compose.yml"
    changed.write_text(text, encoding="utf-8")
    return changed


def _loaded(file: Path, compose: Path = COMPOSE) -> settings.Settings:
    """As the gateway reads them where SETTINGS names this file."""
    service = _services(compose)["gateway"]
    return settings.load(file, {name: str(value) for name, value in service["environment"].items()})


def _check(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    if not CHECKER.exists():
        unavailable("no Compose checker: `make test` builds it where Go is installed")
    # Only what the checker needs: MODEL_URL and COMPOSE_* of the person who tests are not part of the file.
    environment = {"PATH": os.environ["PATH"]}
    return subprocess.run(
        [CHECKER, *options, file], capture_output=True, text=True, timeout=30, check=False, cwd=ROOT, env=environment
    )


def _services(compose: Path = COMPOSE) -> dict[str, Service]:
    done = _check(compose, "--format", "json")
    assert done.returncode == 0, done.stderr
    services: dict[str, Service] = json.loads(done.stdout)["services"]
    return services


def _ours() -> dict[str, Service]:
    return {name: each for name, each in _services().items() if each["image"].startswith("pointsman")}
