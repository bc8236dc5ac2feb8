"""KEDA's operator and metrics adapter, beside the control plane that they scale."""

from collections.abc import Mapping

from tools.kafka.broker import HOST, free_ports
from tools.kubernetes.control_plane import ControlPlane

NAMESPACE = "keda"
ENVIRON: Mapping[str, str] = {
    "KEDA_CLUSTER_OBJECT_NAMESPACE": NAMESPACE,
    "POD_NAMESPACE": NAMESPACE,
    "POD_NAME": "keda-operator",
    "WATCH_NAMESPACE": "",
}


def start_keda(plane: ControlPlane) -> None:
    """Return once the API server serves its metrics. Its processes end with the control plane's.

    One port of the adapter, for its own metrics, listens on all addresses: KEDA lets nobody choose.
    """
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    operator_port, adapter_port, adapter_metrics_port = free_ports(3)
    folder = plane.directory / "keda"
    folder.mkdir()
    certificate, key = plane.write_certificate("tls", HOST, "localhost", into=folder)
    (folder / "ca.crt").write_bytes(plane.authority.cert_pem.bytes())
    plane.processes.start(
        "keda-operator",
        f"--kubeconfig={plane.kubeconfig}",
        "--leader-elect=false",
        f"--cert-dir={folder}",
        f"--ca-dir={folder}",
        "--enable-cert-rotation=false",
        "--enable-apiservice-patching=false",
        "--enable-webhook-patching=false",
        "--enable-prometheus-metrics=false",
        "--health-probe-bind-address=0",
        f"--metrics-service-bind-address={HOST}:{operator_port}",
        environ=ENVIRON,
    )
    configs = ("kubeconfig", "lister-kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    plane.processes.start(
        "keda-adapter",
        *(f"--{name}={plane.kubeconfig}" for name in configs),
        f"--bind-address={HOST}",
        f"--secure-port={adapter_port}",
        f"--port={adapter_metrics_port}",
        f"--metrics-service-address=localhost:{operator_port}",
        "--metrics-service-grpc-authority=localhost",
        f"--client-ca-file={folder / 'ca.crt'}",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
        f"--cert-dir={folder}",
        environ=ENVIRON,
    )
    plane.add_service("v1beta1", "external.metrics.k8s.io", namespace=NAMESPACE, port=adapter_port)
