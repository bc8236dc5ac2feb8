"""Whose turn it is among the jobs that a worker holds."""

from consumers.gate import Gate
from consumers.schedule import MOST_APART, Schedule, Ticket
from router.job import Job
from router.log import Delivery, Record
from tests.builders import a_deployment, a_job


class Replicas:
    """With so much room, and jobs that they do not welcome as yet."""

    def __init__(self, room: int) -> None:
        self.places = room
        self.unwelcome: set[str] = set()

    def room(self, name: str, begun: int) -> int:
        return max(0, self.places - begun)

    def welcomes(self, job: Job) -> bool:
        return job.id not in self.unwelcome


def a_schedule(replicas: Replicas) -> Schedule:
    schedule = Schedule({"small": a_deployment(microbatch_size=1)}, Gate(), lambda tenant: 1.0, slots=64)
    schedule.room, schedule.welcomes = replicas.room, replicas.welcomes
    return schedule


def a_ticket(id: str) -> Ticket:
    return Ticket(a_job(id=id), Delivery("topic", id, Record(b"")), 1)


def begun(schedule: Schedule, now: float) -> list[str]:
    schedule.fill(now)
    return [turn.item.job.id for turns in schedule.close(now) for turn in turns]


def all_begun(schedule: Schedule, now: float) -> list[str]:
    ids: list[str] = []
    while some := begun(schedule, now):
        ids += some
    return ids


def test_others_go_past_a_job_that_waits_for_one_replica_and_it_is_the_first_once_it_is_welcome() -> None:
    replicas = Replicas(room=3)
    schedule = a_schedule(replicas)
    replicas.unwelcome = {"a", "b"}
    for id in "abcd":
        schedule.put(a_ticket(id), 0.0)
    assert all_begun(schedule, 0.0) == ["c", "d"]
    schedule.put(a_ticket("e"), 0.0)

    replicas.unwelcome = {"b"}
    assert all_begun(schedule, 0.1) == ["a"], "which takes the last place"

    replicas.unwelcome, replicas.places = set(), 5
    assert all_begun(schedule, 0.2) == ["b", "e"]


def test_a_job_that_stands_apart_is_looked_at_again_soon_though_nothing_happens() -> None:
    replicas = Replicas(room=3)
    schedule = a_schedule(replicas)
    replicas.unwelcome = {"a"}
    schedule.put(a_ticket("a"), 0.0)

    assert all_begun(schedule, 0.0) == []
    again = schedule.next_change()
    assert again is not None and again <= 0.25


def test_no_more_than_so_many_stand_apart() -> None:
    replicas = Replicas(room=3)
    schedule = a_schedule(replicas)
    replicas.unwelcome = {str(number) for number in range(MOST_APART)}
    for number in range(MOST_APART + 1):
        schedule.put(a_ticket(str(number)), 0.0)

    assert all_begun(schedule, 0.0) == []

    replicas.unwelcome.remove("3")
    assert all_begun(schedule, 0.1) == ["3", str(MOST_APART)]
