"""The time-outs of one call."""

from hypothesis import given
from hypothesis import strategies as st

from policies.deployments import Timeouts

USUAL = Timeouts()


def test_a_short_prompt_has_the_time_outs_of_the_settings_and_less_where_there_is_somewhere_else_to_go() -> None:
    last, first = USUAL.of_call(0, has_next=False), USUAL.of_call(0, has_next=True)

    assert (last.first_token, last.read) == (60.0, 90.0)
    assert (first.first_token, first.read) == (10.0, 20.0)


def test_a_long_prompt_gets_more_time_to_its_first_token() -> None:
    assert USUAL.of_call(30_000, has_next=True).first_token == 40.0
    assert USUAL.of_call(30_000, has_next=False).first_token == 90.0


def test_who_asks_for_less_than_the_hurried_ones_gets_less() -> None:
    quick = Timeouts(first_token=2.0, read=3.0).of_call(0, has_next=True)

    assert (quick.first_token, quick.read) == (2.0, 3.0)


@given(tokens=st.integers(0, 10**9), has_next=st.booleans())
def test_no_first_token_is_waited_for_longer_than_the_whole_answer(tokens: int, has_next: bool) -> None:
    given_ = USUAL.of_call(tokens, has_next=has_next)

    assert 0 < given_.first_token <= given_.total == USUAL.total
    assert given_.connect == USUAL.connect
