"""API server, controller manager, scheduler, etcd and kwok on 127.0.0.1. Nothing runs inside its pods.

kwok plays the kubelet: it reports that pods are ready, that those of jobs have succeeded, and lets go of deleted ones.
"""

import base64
import json
import secrets
import ssl
from collections.abc import Callable
from pathlib import Path

import httpx2
import trustme

from tools.kafka.broker import HOST, free_ports
from tools.kubernetes.api import Api, RefusedError, eventually, has_condition, parsed
from tools.kubernetes.building import CRDS, STAGES, KubernetesToolError, missing
from tools.kubernetes.processes import Processes

START_S = 120.0  # four seconds on an idle machine
NODES = 3  # each in a zone of its own
HPA_SYNC_S = 2  # 15 in a cluster where nobody waits for a test
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "500", "ephemeral-storage": "1Ti"}


class ControlPlane:
    """One, with its data, its logs and its secrets in `directory`, which must be empty."""

    def __init__(self, directory: Path) -> None:
        if why := missing():
            raise KubernetesToolError(why)
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"
        self.authority = trustme.CA()
        self.processes = Processes(directory)
        self._token = secrets.token_urlsafe()
        self._etcd, self._etcd_peer, self._port = free_ports(3)
        self.api = self.client(self._token)

    @property
    def url(self) -> str:
        """The API server's."""
        return f"https://{HOST}:{self._port}"

    def client(self, token: str) -> Api:
        """Of whoever has this token. Close it."""
        trust = ssl.create_default_context()
        self.authority.configure_trust(trust)
        return Api(self.url, token=token, authority=trust)

    def start(self) -> None:
        """Return once pods are scheduled and become ready; raise `KubernetesToolError` otherwise."""
        try:
            self._write_secrets()
            self._start_server()
            self.until(self._is_ready, "the API server is ready")
            self._start_controllers()
            for number in range(NODES):
                self._add_node(number)
            self.until(self._takes_pods, "the nodes take pods")
            self._install_definitions()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all processes. The logs stay in the directory."""
        self.api.close()
        self.processes.stop()

    def write_certificate(
        self, name: str, *identities: str, common_name: str | None = None, into: Path | None = None
    ) -> tuple[Path, Path]:
        """The files of a certificate of the cluster's authority, and of its key."""
        issued = self.authority.issue_cert(*identities, common_name=common_name)
        folder = into or self.directory
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(certificate)
        issued.private_key_pem.write_to_path(key)
        return certificate, key

    def add_service(self, version: str, group: str, *, namespace: str, port: int) -> None:
        """Let the API server ask localhost for the objects of this group; return once it can."""
        name = f"{version}.{group}"
        service = {"name": name.replace(".", "-"), "namespace": namespace}
        spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
        self.api.create(f"/api/v1/namespaces/{namespace}/services", {"metadata": service, "spec": spec})
        asked = {
            "service": {**service, "port": port},
            "group": group,
            "version": version,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
        }
        self.api.create(SERVICES, {"metadata": {"name": name}, "spec": asked})
        self.until(lambda: has_condition(self.api.get(f"{SERVICES}/{name}"), "Available"), f"{name} is served")

    def _write_secrets(self) -> None:
        self._authority.write_bytes(self.authority.cert_pem.bytes())
        self._accounts_key.write_bytes(trustme.CA().private_key_pem.bytes())
        self._tokens.write_text(f'{self._token},admin,admin,"system:masters"\n', encoding="ascii")
        authority = base64.b64encode(self.authority.cert_pem.bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": "admin", "user": {"token": self._token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "admin"}}],
            "current-context": "it",
        }
        self.kubeconfig.write_text(json.dumps(config), encoding="ascii")

    @property
    def _authority(self) -> Path:
        return self.directory / "authority.crt"

    @property
    def _accounts_key(self) -> Path:
        return self.directory / "accounts.key"

    @property
    def _tokens(self) -> Path:
        return self.directory / "tokens.csv"

    def _start_server(self) -> None:
        client, peer = f"http://{HOST}:{self._etcd}", f"http://{HOST}:{self._etcd_peer}"
        self.processes.start(
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )
        certificate, key = self.write_certificate("apiserver", HOST, "localhost", "kubernetes.default.svc")
        front_certificate, front_key = self.write_certificate("front-proxy", "front-proxy", common_name="front-proxy")
        self.processes.start(
            "kube-apiserver",
            f"--etcd-servers={client}",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self._port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--token-auth-file={self._tokens}",
            "--authorization-mode=RBAC",
            f"--service-account-key-file={self._accounts_key}",
            f"--service-account-signing-key-file={self._accounts_key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            # The aggregation layer, through which KEDA's metrics are asked.
            f"--client-ca-file={self._authority}",
            f"--requestheader-client-ca-file={self._authority}",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={front_certificate}",
            f"--proxy-client-key-file={front_key}",
        )

    def _start_controllers(self) -> None:
        alone = (f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0")
        self.processes.start(
            "kube-controller-manager",
            *alone,
            f"--service-account-private-key-file={self._accounts_key}",
            f"--root-ca-file={self._authority}",
            f"--horizontal-pod-autoscaler-sync-period={HPA_SYNC_S}s",
            "--node-monitor-grace-period=10m",  # a machine that is busy is no reason to give up its nodes
        )
        self.processes.start("kube-scheduler", *alone)
        self.processes.start(
            "kwok",
            f"--kubeconfig={self.kubeconfig}",
            "--manage-all-nodes",
            f"--config={STAGES}",
            f"--node-ip={HOST}",
            "--node-lease-duration-seconds=40",
        )

    def _add_node(self, number: int) -> None:
        labels = {"kubernetes.io/hostname": f"node-{number}", "topology.kubernetes.io/zone": f"zone-{number}"}
        node = {
            "metadata": {"name": f"node-{number}", "labels": {**labels, "kubernetes.io/os": "linux"}},
            "status": {"capacity": CAPACITY, "allocatable": CAPACITY},
        }
        self.api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", **node})

    def _install_definitions(self) -> None:
        for file in sorted(CRDS.glob("*.yaml")):
            self.api.create(DEFINITIONS, parsed(file.read_text(encoding="utf-8")))
        self.until(self._serves_definitions, "the custom resources are served")

    def _is_ready(self) -> bool:
        try:
            return self.api.text("/readyz") == "ok"
        except (httpx2.TransportError, RefusedError):
            return False

    def _serves_definitions(self) -> bool:
        """Established is not enough: for a moment after it they cannot be listed."""
        for defined in self.api.items(DEFINITIONS):
            spec = defined["spec"]
            [version, *_] = (each["name"] for each in spec["versions"] if each["served"])
            try:
                self.api.get(f"/apis/{spec['group']}/{version}/{spec['names']['plural']}")
            except RefusedError:
                return False
        return True

    def _takes_pods(self) -> bool:
        """Ready nodes without a taint, and the account that every pod has."""
        nodes = self.api.items("/api/v1/nodes")
        return (
            all(has_condition(node, "Ready") and not node["spec"].get("taints") for node in nodes)
            and self.api.find("/api/v1/namespaces/default/serviceaccounts/default") is not None
        )

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Look until it is so; raise `KubernetesToolError` when that takes too long or a program has ended."""

        def looked() -> bool:
            self.processes.refuse_ended()
            return holds()

        try:
            eventually(looked, within=START_S, what=what)
        except TimeoutError as error:
            raise KubernetesToolError(f"{error}; the logs are in {self.directory}") from error
