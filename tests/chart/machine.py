"""A machine that runs the rendered chart without containers: each container is a process of the installed `pointsman`.

What a kubelet, a Service and a mount would do is done by rewriting: a mounted path is a folder of the test's own, the
name of a Service is this machine's address. All else is as it was rendered: command, arguments, variables, probes.
"""

import asyncio
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.acceptance.processes import DIES_WITH_US
from tests.chart.charts import Object, of_kind, pods

BIN = Path(sys.executable).parent
LOOK_S = 0.1
SLACK = 3  # this machine does in three seconds what a core of its own does in one

Secrets = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a container that ends by itself."""

    code: int
    output: str


@dataclass(slots=True)
class Running:
    """A container that keeps running, and how long its pod would be given to end."""

    name: str
    popen: "subprocess.Popen[bytes]"
    output: Path
    probes: Mapping[str, Object]
    grace_s: float

    async def ready(self) -> None:
        """Return once its probes hold, in the time that they themselves leave it."""
        startup = self.probes["startupProbe"]
        within = startup["periodSeconds"] * startup["failureThreshold"]
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            await self._until(partial(_holds, self.probes[name]), f"its {name} does not hold", within)

    async def ended(self) -> float:
        """The seconds that it took to end by itself after SIGTERM."""
        began = time.monotonic()
        await self._until(lambda: self.popen.poll() is not None, "it does not end", self.grace_s, is_alive=False)
        assert self.popen.returncode == 0, f"{self.name} ended with {self.popen.returncode}:\n{self.tail()}"
        return time.monotonic() - began

    def tail(self) -> str:
        """The end of what it printed."""
        return "\n".join(self.output.read_text(encoding="utf-8", errors="replace").splitlines()[-30:])

    async def _until(self, holds: Callable[[], bool], why: str, within: float, *, is_alive: bool = True) -> None:
        deadline = time.monotonic() + within
        while not await asyncio.to_thread(holds):
            assert not is_alive or self.popen.poll() is None, f"{self.name} ended:\n{self.tail()}"
            assert time.monotonic() < deadline, f"{self.name}: {why} within {within:g} s:\n{self.tail()}"
            await asyncio.sleep(LOOK_S)


@dataclass(slots=True)
class Machine:
    """The objects of one release, with the Secrets that are there."""

    objects: list[Object]
    secrets: Secrets
    folder: Path
    running: dict[str, Running] = field(default_factory=dict)

    async def run(self, pod: str) -> dict[str, Ran]:
        """Run the containers of a pod that ends: one after the other, until one fails."""
        spec, ran = pods(self.objects)[pod], dict[str, Ran]()
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            popen, output = self._start(pod, spec, container)
            code = await asyncio.to_thread(popen.wait, 120)
            ran[container["name"]] = Ran(code, output.read_text(encoding="utf-8", errors="replace"))
            if code:
                break
        return ran

    def start(self) -> None:
        """Start one container of each Deployment."""
        for name, spec in pods(self.objects).items():
            if name.startswith("Deployment/"):
                [container] = spec["containers"]
                popen, output = self._start(name, spec, container)
                self.running[name.removeprefix("Deployment/")] = Running(
                    name, popen, output, container, spec["terminationGracePeriodSeconds"]
                )

    def terminate(self) -> None:
        """What the kubelet does to each, after what comes before it."""
        for each in self.running.values():
            each.popen.terminate()

    def folder_of(self, pod: str, path: str) -> Path:
        """Where a path of a pod is on this machine."""
        return self.folder / pod.replace("/", "-") / path.strip("/").replace("/", "-")

    def address(self, url: str) -> str:
        """The same, with this machine in place of a Service."""
        for name, service in self._services().items():
            for port in service["spec"]["ports"]:
                host = f"//{name}(\\.[a-z]+\\.svc)?:{port['port']}(?=/|$)"
                url = re.sub(host, f"//127.0.0.1:{port['targetPort']}", url)
        return url

    def end(self) -> None:
        """Leave nothing behind."""
        for each in self.running.values():
            each.popen.kill()
            each.popen.wait(10)

    def _services(self) -> dict[str, Object]:
        return {each["metadata"]["name"]: each for each in of_kind(self.objects, "Service").values()}

    def _start(self, pod: str, spec: Object, container: Object) -> "tuple[subprocess.Popen[bytes], Path]":
        mounts = {mount["mountPath"]: self.folder_of(pod, mount["mountPath"]) for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for mount in container["volumeMounts"]:
            self._fill(mounts[mount["mountPath"]], volumes[mount["name"]], mounts)
        words = [*container["command"], *container["args"]]
        command = [str(BIN / words[0]), *(_moved(word, mounts) for word in words[1:])]
        environ = {each["name"]: self._value(each, mounts) for each in container["env"]}
        output = self.folder / f"{pod.replace('/', '-')}-{container['name']}.log"
        with output.open("wb") as file:
            popen = subprocess.Popen(
                [sys.executable, "-c", DIES_WITH_US, *command],
                env={"PATH": str(BIN), **environ},
                cwd=mounts.get("/data", self.folder),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        return popen, output

    def _value(self, variable: Object, mounts: Mapping[str, Path]) -> str:
        if "value" in variable:
            return self.address(_moved(variable["value"], mounts))
        chosen = variable["valueFrom"]["secretKeyRef"]
        return self.secrets[chosen["name"]][chosen["key"]]

    def _fill(self, folder: Path, volume: Object, mounts: Mapping[str, Path]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if "configMap" in volume:
            name = volume["configMap"]["name"]
            [found] = [each for each in self.objects if (each["kind"], each["metadata"]["name"]) == ("ConfigMap", name)]
            for file, content in found["data"].items():
                is_yaml = file.endswith(".yaml")
                text = yaml.safe_dump(_moved(yaml.safe_load(content), mounts)) if is_yaml else content
                (folder / file).write_text(text, encoding="utf-8")
        elif "secret" in volume:
            for file, content in self.secrets[volume["secret"]["secretName"]].items():
                (folder / file).write_text(content, encoding="utf-8")
        else:
            assert "emptyDir" in volume, volume


@contextmanager
def machine(objects: list[Object], secrets: Secrets, folder: Path) -> Iterator[Machine]:
    """Nothing runs yet; whatever is started ends with the block."""
    ours = Machine(objects, secrets, folder)
    try:
        yield ours
    finally:
        ours.end()


def _moved(value: Any, mounts: Mapping[str, Path]) -> Any:
    """With each path of a mount where it is on this machine."""
    match value:
        case str():
            for mounted, folder in mounts.items():
                if value == mounted or value.startswith(f"{mounted}/"):
                    return str(folder) + value.removeprefix(mounted)
            return value
        case dict():
            return {name: _moved(each, mounts) for name, each in value.items()}
        case list():
            return [_moved(each, mounts) for each in value]
        case _:
            return value


def _holds(probe: Object) -> bool:
    asked = probe["httpGet"]
    url = f"http://127.0.0.1:{asked['port']}{asked['path']}"
    try:
        with urllib.request.urlopen(url, timeout=probe["timeoutSeconds"] * SLACK) as answer:
            return int(answer.status) == 200
    except (OSError, urllib.error.URLError):
        return False
