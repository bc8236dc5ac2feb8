"""Where the beginnings of prompts were computed, and who waits for these replicas."""

import json

from consumers.gpu.homes import ASKED_AGAIN_S, Homes
from consumers.gpu.replicas import CACHED
from router.job import Job
from tests.builders import a_body, a_job


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def a_long_job(about: str) -> Job:
    return a_job(body=a_body(f"About {about}. " * 40))


def ahead(homes: Homes, job: Job) -> dict[str, int]:
    found = homes.beginning(job)
    assert found is not None
    return dict(found.ahead)


def test_a_job_knows_who_waits_before_it_and_where() -> None:
    clock = Clock()
    homes, jobs = Homes(clock), [a_long_job("the harbour") for _ in range(3)]
    for job in jobs:
        homes.beginning(job)
        clock.now += 0.1
    homes.told(jobs[0], ["one", "two"])
    for job in jobs:
        homes.waits(job)

    assert [ahead(homes, job) for job in jobs] == [{"one": 0}, {"one": 1}, {"one": 2}]

    homes.waits_no_more(jobs[0].id)
    assert ahead(homes, jobs[2]) == {"one": 1}

    clock.now += ASKED_AGAIN_S
    homes.waits(jobs[2])
    assert ahead(homes, jobs[2]) == {"one": 0}, "nobody asks about the other any more: it is over"


def test_a_job_waits_where_its_beginning_was_had_last_and_elsewhere_once_it_is_not_there_any_more() -> None:
    homes, job, later = Homes(Clock()), a_long_job("the harbour"), a_long_job("the harbour")
    homes.beginning(job)
    for those in (["one", "two"], ["two", "one"], ["two"], []):
        homes.told(job, those)
        homes.waits(job)
        expected = {"one": 0} if "one" in those else {name: 0 for name in those}
        assert ahead(homes, later) == expected


def test_a_job_that_is_too_short_to_have_a_beginning_waits_for_nobody() -> None:
    homes, job = Homes(Clock()), a_job(body=a_body("Hello"))

    assert homes.beginning(job) is None
    homes.waits(job)
    assert ahead(homes, a_long_job("the harbour")) == {}


def test_a_question_after_instructions_that_others_gave_as_well_goes_where_these_were_computed() -> None:
    homes = Homes(Clock())
    instructions = {"role": "system", "content": "You are terse. " * 60}

    def asked(question: str) -> Job:
        messages = [instructions, {"role": "user", "content": question}]
        return a_job(body=json.dumps({"model": "auto", "messages": messages}).encode())

    first, other, again = asked("What is a pointsman?"), asked("And a signal?"), asked("What is a pointsman?")
    before = homes.beginning(first)
    assert before is not None and not before.homes
    homes.told(first, ["one"])

    found, same = homes.beginning(other), homes.beginning(again)
    assert found is not None and list(found.homes) == ["one"]
    assert found.digest == before.digest, "whoever has these instructions names the same two replicas"
    assert 0.5 < found.cached <= CACHED
    assert same is not None and list(same.homes) == ["one"]


def test_instructions_that_are_little_of_a_prompt_save_little() -> None:
    homes = Homes(Clock())
    instructions = {"role": "system", "content": "You are terse. " * 30}

    def asked(question: str) -> Job:
        messages = [instructions, {"role": "user", "content": question * 500}]
        return a_job(body=json.dumps({"model": "auto", "messages": messages}).encode())

    first, other = asked("What is it? "), asked("Why is it? ")
    homes.beginning(first)
    homes.told(first, ["one"])

    found = homes.beginning(other)
    assert found is not None and list(found.homes) == ["one"] and found.cached < 0.1
