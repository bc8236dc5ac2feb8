"""A release of the chart on the control plane, as Helm makes, changes and removes it."""

from dataclasses import dataclass

from tests.chart.charts import CHART, RELEASE, Values, helm
from tools.kubernetes.api import Thing
from tools.kubernetes.control_plane import ControlPlane

WAIT_S = 50  # below what `helm` is given at all


@dataclass(frozen=True, slots=True)
class Release:
    """In a namespace of its own."""

    plane: ControlPlane
    namespace: str

    def install(self, values: Values) -> None:
        """And wait until all of it is ready."""
        self._helm("install", RELEASE, str(CHART), "--wait", f"--timeout={WAIT_S}s", values=values)

    def upgrade(self, values: Values) -> None:
        """And wait until all of it is ready."""
        self._helm("upgrade", RELEASE, str(CHART), "--wait", f"--timeout={WAIT_S}s", values=values)

    def rollback(self, revision: int) -> None:
        """And wait until all of it is ready."""
        self._helm("rollback", RELEASE, str(revision), "--wait", f"--timeout={WAIT_S}s")

    def remove(self) -> None:
        """Nothing when it is not there."""
        self._helm("uninstall", RELEASE, "--ignore-not-found", "--wait", f"--timeout={WAIT_S}s")

    def things(self, resource: str, *, group: str = "apps/v1") -> list[Thing]:
        """Of the namespace."""
        root = f"/apis/{group}" if "/" in group else f"/api/{group}"
        return self.plane.api.items(f"{root}/namespaces/{self.namespace}/{resource}")

    def pods(self) -> list[Thing]:
        """Those that are not on their way out, but for the ones of jobs."""
        return [
            pod
            for pod in self.things("pods", group="v1")
            if "deletionTimestamp" not in pod["metadata"] and pod["metadata"]["ownerReferences"][0]["kind"] != "Job"
        ]

    def _helm(self, *arguments: str, values: Values | None = None) -> None:
        done = helm(*arguments, f"--kubeconfig={self.plane.kubeconfig}", f"--namespace={self.namespace}", values=values)
        assert done.returncode == 0, f"helm {arguments[0]}: {done.stderr}{done.stdout}"
