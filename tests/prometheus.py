"""A real Prometheus, and its tool: what it has scraped, and what its rules say."""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import yaml

from tests.servers import unavailable
from tools.kafka.broker import free_ports

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / ".tools" / "prometheus"
START_S = 60.0


def promtool(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """What it prints and how it ends."""
    return subprocess.run([_program("promtool"), *arguments], capture_output=True, text=True, timeout=60, check=False)


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running one."""

    url: str

    def values(self, query: str) -> list[float]:
        """What a query gives now, without what is no number. Raises for one that it refuses."""
        found = self._ask("query", {"query": query})["result"]
        numbers = [float(each["value"][1]) for each in found]
        return [each for each in numbers if not isnan(each)]

    def up(self) -> dict[str, bool]:
        """Which processes answer when they are scraped, by name."""
        found = self._ask("query", {"query": "up"})["result"]
        return {each["metric"]["instance"]: each["value"][1] == "1" for each in found}

    def rules(self) -> dict[str, str]:
        """Every alert, and how its last evaluation went."""
        groups = self._ask("rules", {})["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    def _ask(self, what: str, values: Mapping[str, str]) -> Any:
        address = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(values)}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            return json.load(answer)["data"]


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, str], rules: Path) -> Iterator[Prometheus]:
    """Scrapes `host:port` of each name every second, and judges the rules; ended with the block."""
    config = folder / "prometheus.yml"
    scraped = [{"targets": [at], "labels": {"instance": name}} for name, at in targets.items()]
    values = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "pointsman", "static_configs": scraped}],
    }
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    [port] = free_ports(1)
    at = f"127.0.0.1:{port}"
    command = [
        _program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={at}",
    ]
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            _until_ready(f"http://{at}", folder / "prometheus.log")
            yield Prometheus(f"http://{at}")
        finally:
            server.terminate()
            server.wait(20)


def _program(name: str) -> str:
    program = PROGRAMS / name
    if not program.exists():
        unavailable("there is no Prometheus: `make test` fetches it with apt-get")
    return str(program)


def _until_ready(url: str, log: Path) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < until, log.read_text(encoding="utf-8")[-2000:]
            time.sleep(0.1)
