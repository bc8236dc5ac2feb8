"""Real workers for pods that kwok only says to run."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.acceptance.processes import Pointsman, Process
from tests.chart.releases import Release
from tools.kubernetes.api import RefusedError, Thing

FINALIZER = "tests.pointsman/process"
LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker whose pod was deleted: its exit code, the seconds from SIGTERM to its end, and those it might take."""

    code: int
    took_s: float
    grace_s: float


@dataclass(slots=True)
class Kubelet:
    """Starts a worker for each new pod of a component, with SIGTERM when the pod is deleted.

    A finalizer holds the pod until its worker has ended, as a kubelet would. Nobody is killed after the grace period:
    tests look at `ended`.
    """

    release: Release
    component: str
    ours: Pointsman
    backend: str
    running: dict[str, Process] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)
    _told: dict[str, float] = field(default_factory=dict)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """For as long as the block runs; all pods are let go with it. Raises what went wrong meanwhile."""
        following = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            following.cancel()
            [fault] = await asyncio.gather(following, return_exceptions=True)
            for pod in self._pods():
                self._hold(pod["metadata"]["name"], is_held=False)
        if isinstance(fault, Exception):
            raise fault

    async def _follow(self) -> None:
        while True:
            for pod in await asyncio.to_thread(self._pods):
                await self._look_after(pod)
            await asyncio.sleep(LOOK_S)

    async def _look_after(self, pod: Thing) -> None:
        name, is_going = pod["metadata"]["name"], "deletionTimestamp" in pod["metadata"]
        process = self.running.get(name)
        if process is None:
            if not is_going:
                await asyncio.to_thread(self._hold, name, is_held=True)
                self.running[name] = self.ours.worker(self.backend)
        elif is_going and name not in self._told:
            process.popen.terminate()
            self._told[name] = time.monotonic()
        elif is_going and process.popen.poll() is not None:
            took_s = time.monotonic() - self._told[name]
            self.ended.append(Ended(process.popen.returncode, took_s, pod["spec"]["terminationGracePeriodSeconds"]))
            del self.running[name]
            await asyncio.to_thread(self._hold, name, is_held=False)
        else:
            assert is_going or process.popen.poll() is None, f"a worker ended by itself:\n{process.tail()}"

    def _pods(self) -> list[Thing]:
        selector = f"app.kubernetes.io/component={self.component}"
        return self.release.things(f"pods?labelSelector={selector}", group="v1")

    def _hold(self, name: str, *, is_held: bool) -> None:
        path = f"/api/v1/namespaces/{self.release.namespace}/pods/{name}"
        try:
            self.release.plane.api.merge(path, {"metadata": {"finalizers": [FINALIZER] if is_held else []}})
        except RefusedError as error:  # it may be gone by now, or going: then it is too late to hold it
            if error.status not in (404, 422):
                raise
