"""Our histogram counts as the library's does."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as Library

from gateway.histogram import Histogram

BOUNDS = (0.01, 0.1, 1.0, 10.0)


def shown(registry: CollectorRegistry) -> list[str]:
    text = generate_latest(registry).decode()
    return sorted(line for line in text.splitlines() if "_created" not in line)


@given(st.lists(st.tuples(st.sampled_from(["/a", "/b"]), st.sampled_from([*BOUNDS, 0.0, 0.05, 0.5, 5.0, 500.0]))))
def test_it_shows_what_the_librarys_would(seen: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("seconds", "What it is", BOUNDS, ours, label="route")
    library = Library("seconds", "What it is", ["route"], buckets=BOUNDS, registry=theirs)

    for route, seconds in seen:
        histogram.observe(seconds, route)
        library.labels(route).observe(seconds)

    assert shown(ours) == shown(theirs)


@given(st.lists(st.sampled_from([0.0, 0.01, 0.3, 20.0])))
def test_it_does_so_without_a_label(seen: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("seconds", "What it is", BOUNDS, ours)
    library = Library("seconds", "What it is", buckets=BOUNDS, registry=theirs)

    for seconds in seen:
        histogram.observe(seconds)
        library.observe(seconds)

    assert shown(ours) == shown(theirs)
