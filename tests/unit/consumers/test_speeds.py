"""How fast replicas are, as their calls have shown."""

from hypothesis import given
from hypothesis import strategies as st

from consumers.gpu.speeds import ALIKE, LEAST_TOKENS, USUAL, Shown, speeds

calls = st.lists(
    st.tuples(st.floats(0.01, 600), st.floats(0, 1), st.floats(0, 100_000), st.integers(0, 10_000)), max_size=20
)


def shown(
    *, calls: int = 1, seconds: float = 6.0, first_s: float = 1.0, prompt: float = 1000, answer: int = 100
) -> Shown:
    found = Shown()
    for _ in range(calls):
        found.answered(seconds=seconds, first_s=first_s, prompt=prompt, answer=answer)
    return found


def test_of_who_has_shown_nothing_what_is_usual_is_expected() -> None:
    assert speeds([Shown()]) == [USUAL]

    [new, old] = speeds([Shown(), shown()])
    assert new == old
    assert (old.prompt_s, old.token_s, old.call_s) == (0.001, 0.05, 6.0)


def test_one_that_is_twice_as_slow_is_told_apart_and_a_little_more_is_chance() -> None:
    usual, _, near, slow = speeds([shown(), shown(), shown(seconds=6.0 * 1.1), shown(seconds=12.0, first_s=2.0)])

    assert near == usual
    assert (slow.prompt_s, slow.token_s) == (usual.prompt_s * 2, usual.token_s * 2)


def test_a_prompt_that_was_in_a_cache_or_is_short_says_nothing_about_computing_one() -> None:
    found = shown(prompt=0)
    found.answered(seconds=6.0, first_s=1.0, prompt=LEAST_TOKENS - 1, answer=100)

    assert found.prompt_s is None
    assert found.token_s == 0.05


@given(st.lists(calls, min_size=1, max_size=6))
def test_whatever_is_shown_speeds_are_of_those_who_showed_them_or_usual(each: list[list[tuple[float, ...]]]) -> None:
    seen = []
    for some in each:
        seen.append(Shown())
        for seconds, part, prompt, answer in some:
            seen[-1].answered(seconds=seconds, first_s=seconds * part, prompt=prompt, answer=int(answer))

    found = speeds(seen)

    usual = min((one.call_s for one in seen if one.call_s), default=USUAL.call_s)
    assert len(found) == len(seen)
    assert all(one.call_s >= usual / ALIKE for one in found)
    assert all(one.prompt_s >= 0 and one.token_s >= 0 for one in found)
