"""When the next place of a deployment is to be kept for a worker."""

from consumers.placeless import FORGOTTEN_S, LONG_S, Placeless


def test_who_is_refused_for_long_without_holding_any_is_told_so_until_it_has_one() -> None:
    placeless = Placeless()
    told = []
    for step in range(6):
        told.append(placeless.is_long("small", step * LONG_S / 4))
        placeless.refused("small", step * LONG_S / 4)
    placeless.has_one("small")

    assert told == [False] * 4 + [True] * 2
    assert not placeless.is_long("small", 1.5 * LONG_S)
    assert not placeless.is_long("other", 1.5 * LONG_S)


def test_a_refusal_of_long_ago_says_nothing() -> None:
    placeless = Placeless()
    for moment in (0.0, LONG_S):
        placeless.refused("small", moment)

    later = LONG_S + FORGOTTEN_S
    assert placeless.is_long("small", later - 0.1)
    assert not placeless.is_long("small", later)
    placeless.refused("small", later)
    assert not placeless.is_long("small", later + 0.1)
