"""Where the beginnings of prompts were computed, and who waits for these replicas."""

from consumers.gpu.homes import ASKED_AGAIN_S, Homes
from router.job import Job
from tests.builders import a_body, a_job


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def a_long_job(about: str) -> Job:
    return a_job(body=a_body(f"About {about}. " * 40))


def ahead(homes: Homes, job: Job) -> dict[str, float]:
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

    assert [ahead(homes, job) for job in jobs] == [{}, {"one": 0.5, "two": 0.5}, {"one": 1.0, "two": 1.0}]

    homes.waits_no_more(jobs[0])
    assert ahead(homes, jobs[2]) == {"one": 0.5, "two": 0.5}

    clock.now += ASKED_AGAIN_S
    homes.waits(jobs[2])
    assert ahead(homes, jobs[2]) == {}, "nobody asks about the other any more: it is over"


def test_a_job_that_is_too_short_to_have_a_beginning_waits_for_nobody() -> None:
    homes, job = Homes(Clock()), a_job(body=a_body("Hello"))

    assert homes.beginning(job) is None
    homes.waits(job)
    assert ahead(homes, a_long_job("the harbour")) == {}
