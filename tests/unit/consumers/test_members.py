"""What one replica's own words say about it."""

from consumers.gpu.discovery import Replica
from consumers.gpu.engines import Facts
from consumers.gpu.members import LATELY_S, Member
from consumers.gpu.replicas import LEARN_S, Learned, lowered


def too_many(member: Member) -> int | None:
    return member.too_many


def test_calls_that_fill_a_cache_lower_the_cap_and_again_only_once_they_have_come_down_to_it() -> None:
    member = Member(Replica("gpu-1:8000", "http://gpu-1:8000"), facts=Facts(kv_use=0.95), everyone=20)
    assert too_many(member) == 20

    member.learned = lowered(None, in_flight=20, now=0.0)
    assert member.learned is not None and member.learned.cap < 20
    assert too_many(member) is None, "those calls began before it was learned"

    member.everyone = int(member.learned.cap)
    assert too_many(member) == member.everyone
    again = lowered(member.learned, in_flight=member.everyone, now=LEARN_S)
    assert again is not None and again.cap < member.learned.cap

    member.facts = Facts(kv_use=0.5)
    assert too_many(member) is None


def test_what_a_replica_was_given_fades() -> None:
    member = Member(Replica("gpu-1:8000", "http://gpu-1:8000"))
    member.gets(10.0, 5.0)
    member.gets(10.0, 7.0)

    assert member.given(10.0) == 12.0
    assert 0 < member.given(10.0 + LATELY_S) < 6.0


def test_a_cache_that_is_not_told_about_lowers_nothing() -> None:
    member = Member(Replica("gpu-1:8000", "http://gpu-1:8000"), everyone=20, learned=Learned(32.0, 0.0))

    assert too_many(member) is None
