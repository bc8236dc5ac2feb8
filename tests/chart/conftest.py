"""One control plane for all tests of the chart, started when the first of them asks for it."""

import itertools
from collections.abc import Generator, Iterator

import pytest

from tests.chart.releases import Release
from tests.doubles import metrics_double
from tests.servers import unavailable
from tools.kubernetes.building import missing
from tools.kubernetes.control_plane import ControlPlane
from tools.kubernetes.keda import start_keda


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Generator[ControlPlane]:
    """Its logs are in pytest's folder. Skips where it is not built, and fails in CI."""
    if why := missing():
        unavailable(why)
    plane = ControlPlane(tmp_path_factory.mktemp("kubernetes"))
    plane.start()
    try:
        yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def keda(plane: ControlPlane) -> ControlPlane:
    """The same, with KEDA."""
    start_keda(plane)
    return plane


@pytest.fixture(scope="session")
def metrics(plane: ControlPlane) -> Generator[str]:
    """The address of a double of the metrics server, which the API server asks."""
    with metrics_double() as url:
        plane.add_service("v1beta1", "metrics.k8s.io", namespace="kube-system", port=int(url.rpartition(":")[2]))
        yield url


@pytest.fixture(scope="session")
def _numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def namespace(plane: ControlPlane, _numbers: Iterator[int]) -> str:
    """A new and empty one."""
    name = f"test-{next(_numbers)}"
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    plane.until(lambda: plane.api.find(account) is not None, f"namespace {name} takes pods")
    return name


@pytest.fixture
def release(plane: ControlPlane, namespace: str) -> Generator[Release]:
    """Not installed yet; gone after the test."""
    release = Release(plane, namespace)
    yield release
    release.remove()
