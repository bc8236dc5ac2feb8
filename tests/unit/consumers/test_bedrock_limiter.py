"""How many calls at once a worker has on a model of Bedrock: learned from what it refuses."""

from consumers.aws.bedrock_errors import Pressure
from consumers.aws.bedrock_limiter import Limiter


def a_limiter(calls: int, *, concurrency: int | None = None) -> Limiter:
    limiter = Limiter({"m": concurrency})
    for i in range(calls):
        assert limiter.take("m", str(i))
    return limiter


def test_nothing_is_bounded_until_something_was_refused() -> None:
    assert a_limiter(500).room("m", 500) is None


def test_a_throttle_halves_what_was_in_flight_and_the_rest_of_the_same_second_says_nothing_new() -> None:
    limiter = a_limiter(20)

    limiter.failed("m", Pressure.MUCH, 10.0)
    limiter.failed("m", Pressure.MUCH, 10.5)

    assert limiter.room("m", 0) == 10
    assert limiter.room("m", 20) == 0
    assert not limiter.take("m", "one more")


def test_an_unavailable_model_costs_less_and_one_that_is_not_ready_costs_nothing() -> None:
    limiter = a_limiter(20)

    limiter.failed("m", Pressure.NONE, 10.0)
    assert limiter.room("m", 0) is None
    limiter.failed("m", Pressure.SOME, 10.0)
    assert limiter.room("m", 0) == 17


def test_it_grows_by_one_a_second_while_it_is_used_and_is_forgotten_at_the_limit() -> None:
    limiter = a_limiter(4, concurrency=4)
    limiter.failed("m", Pressure.MUCH, 10.0)
    for name in ("2", "3"):
        limiter.leave("m", name)

    limiter.succeeded("m", 11.5)
    assert limiter.room("m", 0) == 3
    assert limiter.take("m", "4")
    limiter.succeeded("m", 11.6)
    assert limiter.room("m", 0) == 3
    limiter.succeeded("m", 13.0)
    assert limiter.room("m", 0) is None


def test_one_call_is_always_left() -> None:
    limiter = a_limiter(1)

    for second in range(20):
        limiter.failed("m", Pressure.MUCH, second * 2.0)

    assert limiter.room("m", 0) == 1


def test_a_call_that_asks_twice_has_one_place() -> None:
    limiter = a_limiter(2)
    limiter.failed("m", Pressure.MUCH, 10.0)
    limiter.leave("m", "1")

    assert limiter.take("m", "0")
    assert not limiter.take("m", "2")
    limiter.leave("m", "0")
    assert limiter.take("m", "2")
