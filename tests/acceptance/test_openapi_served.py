"""What a running Pointsman answers is what its OpenAPI document says, whatever is asked; a refusal leaves no job.

POINTSMAN_TEST_API_CASES requests, 500 without it: a third each that the document forbids, that it allows, and in chains
that follow its links.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from copy import deepcopy
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as hypothesis_settings
from hypothesis.errors import FlakyStrategyDefinition
from hypothesis.stateful import run_state_machine_as_test
from redis import Redis
from schemathesis import APIOperation, BaseSchema, Case, CheckFunction
from schemathesis.config import (
    GenerationConfig,
    PhasesConfig,
    ProjectConfig,
    ProjectsConfig,
    SchemathesisConfig,
    StatefulPhaseConfig,
)
from schemathesis.config._phases import InferenceConfig
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.generation.stateful.state_machine import StepOutput
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.acceptance.refusals import Refused
from tests.acceptance.surface import Surface

CASES = int(os.environ.get("POINTSMAN_TEST_API_CASES", "500"))
CHAINS, STEPS = 5, 12  # chains at a time, steps of a chain
ENOUGH = {"/v1/jobs/{id}", "/v1/files/{id}", "/v1/responses/{id}"}  # that chains have to come to
RECORDING = "RIFF0000WAVEfmt "
# A document says little of what may not come together, or of a file's inside: allowed data may be refused for that.
UNCHECKED: list[CheckFunction] = [positive_data_acceptance]

Operation = APIOperation[Any, Any, Any, Any]

pytestmark = pytest.mark.timeout(120 + CASES // 4)


class Asking:
    """Sends cases, and looks at each answer and at what became of it."""

    def __init__(self, served: Surface) -> None:
        self.seen = Counter[tuple[str, int]]()
        self._root = served.process.url
        self._refused = served.ours.refusals.all
        self._headers = {"authorization": f"Bearer {served.ours.key}"}
        self._session = requests.Session()
        self._redis = Redis(unix_socket_path=str(served.ours.data / "valkey" / "valkey.sock"))

    def close(self) -> None:
        self._session.close()
        self._redis.close()

    def send(self, case: "Case[Any]") -> Any:
        before = self.enqueued()
        response = case.call(base_url=self._root, session=self._session, headers=self._headers, timeout=60)
        self.seen[case.operation.label, response.status_code] += 1
        case.validate_response(response, excluded_checks=UNCHECKED, headers=self._headers)
        if response.status_code >= 400:
            self._refused.append(Refused(_text(response.request.body), "", response.text))
            assert self.enqueued() == before, f"{case.operation.label} was refused, and made a job"
        return response

    def enqueued(self) -> int:
        """How many records the topics of jobs have had."""
        logs = self._redis.scan_iter("log:jobs.echo.*", count=1000)
        return sum(int(self._redis.xinfo_stream(name)["entries-added"]) for name in logs)

    def of(self, label: str) -> Counter[int]:
        """How often it was answered how."""
        return Counter({status: count for (name, status), count in self.seen.items() if name == label})


@pytest.fixture(scope="module")
def asking(served: Surface) -> Iterator[Asking]:
    with closing(Asking(served)) as asking:
        yield asking


@pytest.fixture(scope="module")
def document(served: Surface) -> dict[str, Any]:
    """As it is served, to whoever has no key."""
    answer = requests.get(f"{served.process.url}/openapi.json", timeout=10)
    assert answer.headers["content-type"] == "application/json"
    return dict(answer.json())


def _text(body: object) -> str:
    return body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body or "")


def narrowed(document: dict[str, Any]) -> dict[str, Any]:
    """Without what is right only together with something else, so that most of what is asked can be done."""
    document = deepcopy(document)
    for name, schema in document["components"]["schemas"].items():
        if name.endswith(("Request", "Form")):
            schema["additionalProperties"] = False
            properties = schema.get("properties", {})
            properties.get("model", {}).update({"enum": ["auto", "light", "auto:heavy"]})
            for together in ("stream_options", "tool_choice", "timestamp_granularities[]"):
                properties.pop(together, None)
    forms = document["components"]["schemas"]
    forms["TranscriptionForm"]["properties"]["file"] = {"const": RECORDING}
    forms["FileForm"]["properties"]["purpose"] = {"const": "batch"}
    return document


def opened(document: dict[str, Any], mode: GenerationMode) -> BaseSchema:
    generation = GenerationConfig(modes=[mode], with_security_parameters=False, allow_x00=False)
    phases = PhasesConfig(stateful=StatefulPhaseConfig(inference=InferenceConfig(algorithms=[])))
    project = ProjectConfig(generation=generation, phases=phases)
    config = SchemathesisConfig(projects=ProjectsConfig(default=project))
    return schemathesis.openapi.from_dict(document, config=config)


def test_what_the_document_forbids_is_refused_and_makes_no_job(asking: Asking, document: dict[str, Any]) -> None:
    operations = [each for each in operations_of(opened(document, GenerationMode.NEGATIVE)) if has_something(each)]

    for operation in operations:
        send_some(asking, operation, GenerationMode.NEGATIVE, CASES // 3 // len(operations) + 1)

    assert all(asking.of(each.label).keys() & {400, 404, 413, 415, 422} for each in operations)


def test_what_the_document_allows_is_answered_as_it_says(asking: Asking, document: dict[str, Any]) -> None:
    operations = operations_of(opened(narrowed(document), GenerationMode.POSITIVE))

    for operation in operations:
        send_some(asking, operation, GenerationMode.POSITIVE, CASES // 3 // len(operations) + 1)

    done = {label for label, status in asking.seen if status in (200, 202)}
    assert {each.label for each in operations if "{id}" not in each.path and each.path != "/v1/batches"} <= done


def test_what_is_made_is_found_read_and_ended_as_the_document_says(asking: Asking, document: dict[str, Any]) -> None:
    document = narrowed(document)
    for name in ("Embeddings", "Images", "Speech"):
        request = document["components"]["schemas"][f"{name}Request"]
        request["properties"]["async"] = {"const": True}
        request["required"].append("async")
    schema = opened(document, GenerationMode.POSITIVE)
    # What needs no id says nothing about a chain.
    machine: Any = schema.exclude(method="GET", path_regex="^[^{]*$").as_state_machine()

    class Chains(machine):  # type: ignore[misc]
        def step(self, input: Any) -> Any:
            return StepOutput(asking.send(input.case), input.case)

    before, number = asking.seen.total(), 0
    while asking.seen.total() < before + CASES // 3 or not (found_by_id(asking) >= ENOUGH):
        assert asking.seen.total() < before + CASES, f"chains have not found {ENOUGH - found_by_id(asking)}"
        number += 1
        with suppress(FlakyStrategyDefinition):  # the same steps led elsewhere: what was made before is there now
            run_state_machine_as_test(seed(number)(Chains), settings=rules(CHAINS, stateful_step_count=STEPS))

    assert len({label for label, status in asking.seen if status == 200 and "{id}" in label}) >= 9


def found_by_id(asking: Asking) -> set[str]:
    """The addresses at which something that was made has been found."""
    return {label.split(" ")[1] for label, status in asking.seen if status == 200 and "{id}" in label}


def operations_of(schema: BaseSchema) -> list[Operation]:
    return [each.ok() for each in schema.get_all_operations() if isinstance(each, Ok)]


def has_something(operation: Operation) -> bool:
    """Whether there is anything that could be wrong: a model may have any name."""
    return bool(operation.body or operation.query or operation.path_parameters) and "/models" not in operation.path


def send_some(asking: Asking, operation: Operation, mode: GenerationMode, count: int) -> None:
    @rules(count)
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: "Case[Any]") -> None:
        asking.send(case)

    send()


def rules(count: int, **more: Any) -> hypothesis_settings:
    """The short form is the same each time."""
    return hypothesis_settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=CASES <= 500,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        **more,
    )
