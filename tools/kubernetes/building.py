"""Builds what the control plane is made of from Go modules. Needs Go and nothing else; no Python packages.

Three folders beside this file pin versions and hashes, each in a go.mod of its own: `cluster` those of the programs
that do with Kubernetes' own version of its libraries, `keda` those of KEDA, `crds` those of modules that are only read.
"""

import json
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import again

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[1] / ".tools" / "kubernetes"
PROGRAMS = HOME / "bin"
CRDS = HOME / "crds"
STAGES = HOME / "stages.yaml"
BUILT = HOME / ".built"


class KubernetesToolError(Exception):
    """The control plane cannot be built or does not start; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Program:
    """One binary: what it is called, in which folder's module it is pinned, and its package."""

    name: str
    folder: str
    package: str


@dataclass(frozen=True, slots=True)
class Read:
    """Files of a module that are copied and not built: those below `path` whose names match one of `files`."""

    folder: str
    module: str
    path: str
    files: Sequence[str]


EVERYTHING = (
    Program("etcd", "cluster", "go.etcd.io/etcd/server/v3"),
    Program("kube-apiserver", "cluster", "k8s.io/kubernetes/cmd/kube-apiserver"),
    Program("kube-controller-manager", "cluster", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    Program("kube-scheduler", "cluster", "k8s.io/kubernetes/cmd/kube-scheduler"),
    Program("kwok", "cluster", "sigs.k8s.io/kwok/cmd/kwok"),
    Program("keda-operator", "keda", "github.com/kedacore/keda/v2/cmd/operator"),
    Program("keda-adapter", "keda", "github.com/kedacore/keda/v2/cmd/adapter"),
    Program("helm", "cluster", "helm.sh/helm/v3/cmd/helm"),
)
DEFINITIONS = (
    Read("keda", "github.com/kedacore/keda/v2", "config/crd/bases", ("*.yaml",)),
    Read(
        "crds",
        "github.com/prometheus-operator/prometheus-operator",
        "example/prometheus-operator-crd",
        ("*_servicemonitors.yaml", "*_prometheusrules.yaml"),
    ),
    Read("crds", "sigs.k8s.io/gateway-api", "config/crd/standard", ("*_httproutes.yaml",)),
    Read(
        "crds",
        "github.com/external-secrets/external-secrets",
        "config/crds/bases",
        ("external-secrets.io_externalsecrets.yaml",),
    ),
)
# What kwok lets nodes, pods and volumes do by themselves.
BEHAVIOUR = Read(
    "cluster",
    "sigs.k8s.io/kwok",
    "kustomize/stage",
    ("node/fast/node-*.yaml", "node/heartbeat-with-lease/node-*.yaml", "pod/fast/pod-*.yaml", "volume/fast/pv*.yaml"),
)


def build() -> None:
    """Everything into `.tools/kubernetes`; what Go finds unchanged it leaves as it is. Prints one line for each."""
    if shutil.which("go") is None:
        raise KubernetesToolError("Go is not on the PATH: install Go 1.26 or newer")
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    BUILT.unlink(missing_ok=True)
    for number, program in enumerate(EVERYTHING, 1):
        print(f"building {program.name} ({number} of {len(EVERYTHING)})", flush=True)
        started = time.monotonic()
        arguments = ["build", "-ldflags", _linking(), "-o", str(PROGRAMS / program.name), program.package]
        _go(program.folder, arguments, f"{program.name} could not be built")
        print(f"  {time.monotonic() - started:.0f} s", flush=True)
    _copy_definitions()
    BUILT.touch()


def missing() -> str:
    """What a start lacks on this machine; empty when nothing."""
    return "" if BUILT.exists() else "the control plane is not built: run `make kubernetes` (needs Go 1.26)"


def _copy_definitions() -> None:
    shutil.rmtree(CRDS, ignore_errors=True)
    CRDS.mkdir()
    for definitions in DEFINITIONS:
        for file in _files(definitions):
            shutil.copyfile(file, CRDS / file.name)
    STAGES.write_text("\n---\n".join(file.read_text(encoding="utf-8") for file in _files(BEHAVIOUR)), encoding="utf-8")


def _linking() -> str:
    """No tables for a debugger; and the versions, which Kubernetes' and Helm's own builds write into their programs."""
    required = (HERE / "cluster" / "go.mod").read_text(encoding="utf-8")
    found = re.search(r"^\tk8s\.io/kubernetes v(\d+)\.(\d+)\.(\d+)", required, re.MULTILINE)
    if found is None:
        raise KubernetesToolError("tools/kubernetes/cluster/go.mod names no version of k8s.io/kubernetes")
    major, minor, patch = found.groups()
    versions = {
        "k8s.io/component-base/version.gitVersion": f"v{major}.{minor}.{patch}",
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        **{
            f"helm.sh/helm/v3/pkg/{package}.k8sVersion{part}": value
            for package in ("chartutil", "lint/rules")
            for part, value in (("Major", major), ("Minor", minor))
        },
    }
    return " ".join(("-s -w", *(f"-X {name}={value}" for name, value in versions.items())))


def _files(read: Read) -> list[Path]:
    told = _go(read.folder, ["mod", "download", "-json", read.module], f"{read.module} could not be fetched")
    found = [file for pattern in read.files for file in sorted((Path(told["Dir"]) / read.path).glob(pattern))]
    if len(found) < len(read.files):
        raise KubernetesToolError(f"{read.module} has no longer all of {', '.join(read.files)} in {read.path}")
    return found


def _go(folder: str, arguments: Sequence[str], fault: str) -> dict[str, str]:
    """What Go printed, where that is JSON. Its complaints go to our standard error."""
    done = again.run(["go", *arguments], cwd=HERE / folder)
    if done.returncode != 0:
        raise KubernetesToolError(f"{fault}; what Go printed says why{': ' + done.stdout if done.stdout else ''}")
    answer: dict[str, str] = json.loads(done.stdout) if done.stdout else {}
    return answer
