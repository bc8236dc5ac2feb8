"""What a test asks of an API server: objects as they are in JSON, by their address or by their kind."""

import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx2
import yaml

Thing = dict[str, Any]

OWNER = "pointsman-tests"  # of what is applied
LOOK_S = 0.1


class RefusedError(Exception):
    """The API server's own words, and its status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """A client with one identity."""

    def __init__(self, url: str, *, token: str, authority: ssl.SSLContext) -> None:
        self.url = url
        headers = {"authorization": f"Bearer {token}"}
        self._http = httpx2.Client(base_url=url, headers=headers, verify=authority, timeout=30)
        self._kinds: dict[tuple[str, str], Thing] = {}

    def close(self) -> None:
        """Of no more use."""
        self._http.close()

    def get(self, path: str) -> Thing:
        """Raises `RefusedError`, 404 as well."""
        return self._ask("GET", path)

    def find(self, path: str) -> Thing | None:
        """None where there is none."""
        try:
            return self.get(path)
        except RefusedError as error:
            if error.status == httpx2.codes.NOT_FOUND:
                return None
            raise

    def text(self, path: str) -> str:
        """Of what is not an object: `/readyz`, `/metrics`."""
        return self._answer("GET", path).text

    def items(self, path: str) -> list[Thing]:
        """Of a collection."""
        found: list[Thing] = self.get(path)["items"]
        return found

    def create(self, path: str, thing: Mapping[str, Any]) -> Thing:
        """In the collection."""
        return self._ask("POST", path, json=thing)

    def delete(self, path: str) -> None:
        """In the background; finalizers are kept."""
        self._ask("DELETE", path)

    def merge(self, path: str, change: Mapping[str, Any]) -> Thing:
        """A merge patch."""
        return self._ask("PATCH", path, json=change, headers={"content-type": "application/merge-patch+json"})

    def apply(self, text: str, *, namespace: str = "default", dry_run: bool = False) -> Thing:
        """One YAML document, by server-side apply. Unknown and repeated fields are refused."""
        path = self.path_of(parsed(text), namespace)
        query = {"fieldManager": OWNER, "fieldValidation": "Strict", "force": "true"}
        if dry_run:
            query["dryRun"] = "All"
        headers = {"content-type": "application/apply-patch+yaml"}
        return self._ask("PATCH", path, params=query, content=text.encode(), headers=headers)

    def path_of(self, thing: Mapping[str, Any], namespace: str) -> str:
        """Where it lies or would lie."""
        version, kind, name = thing["apiVersion"], thing["kind"], thing["metadata"]["name"]
        if (version, kind) not in self._kinds:
            self._learn(version)
        if (version, kind) not in self._kinds:
            raise RefusedError(404, f"no resource of this server is a {kind} of {version}")
        resource = self._kinds[version, kind]
        where = f"namespaces/{thing['metadata'].get('namespace', namespace)}/" if resource["namespaced"] else ""
        return f"{_root(version)}/{where}{resource['name']}/{name}"

    def everything(self, namespace: str) -> set[str]:
        """Kind and name of all that there is in a namespace, and of all cluster-wide roles and their bindings."""
        versions = ["v1"]
        versions += [group["preferredVersion"]["groupVersion"] for group in self.get("/apis")["groups"]]
        found: set[str] = set()
        for version in versions:
            for resource in self.get(_root(version))["resources"]:
                is_wide = version.startswith("rbac.") and not resource["namespaced"]
                if "list" not in resource["verbs"] or "delete" not in resource["verbs"]:
                    continue
                if resource["namespaced"] or is_wide:
                    where = "" if is_wide else f"namespaces/{namespace}/"
                    things = self.items(f"{_root(version)}/{where}{resource['name']}")
                    found |= {f"{resource['kind']} {each['metadata']['name']}" for each in things}
        return found

    def _learn(self, version: str) -> None:
        for resource in self.get(_root(version))["resources"]:
            if "/" not in resource["name"]:
                self._kinds[version, resource["kind"]] = resource

    def _ask(self, method: str, path: str, **fields: Any) -> Thing:
        told: Thing = self._answer(method, path, **fields).json()
        return told

    def _answer(self, method: str, path: str, **fields: Any) -> httpx2.Response:
        answer = self._http.request(method, path, **fields)
        if answer.is_error:
            raise RefusedError(answer.status_code, _message(answer))
        return answer


def parsed(text: str) -> Thing:
    """One YAML document. With the parser in C: definitions of resources are long."""
    thing: Thing = yaml.load(text, Loader=yaml.CSafeLoader)
    return thing


def has_condition(thing: Mapping[str, Any], condition: str) -> bool:
    """Whether its status says that this is true."""
    conditions = thing.get("status", {}).get("conditions") or []  # null before anybody has looked at it
    return any(each["type"] == condition and each["status"] == "True" for each in conditions)


def eventually(holds: Callable[[], bool], *, within: float, what: str) -> None:
    """Look again and again; raise `TimeoutError` when it does not come true."""
    deadline = time.monotonic() + within
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {within:.0f} s")
        time.sleep(LOOK_S)


def _root(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def _message(answer: httpx2.Response) -> str:
    try:
        return str(answer.json().get("message", answer.text))
    except ValueError:
        return answer.text
