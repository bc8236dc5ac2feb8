"""Our counters and histograms show what the library's do."""

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from consumers.counting import Counter, Histogram
from router.job import JobClass

BOUNDS = (0.01, 0.1, 1, 10)
SECONDS = st.sampled_from([*BOUNDS, 0.0, 0.05, 0.5, 5.0, 500.0])
LABELS = st.tuples(st.sampled_from(["light", 'a "b"\n']), st.sampled_from(JobClass))


def shown(registry: CollectorRegistry) -> list[str]:
    text = generate_latest(registry).decode()
    return sorted(line for line in text.splitlines() if "_created" not in line)


@given(st.lists(st.tuples(LABELS, SECONDS)))
def test_a_histogram_by_labels(seen: list[tuple[tuple[str, str], float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("seconds", "What it is", ["deployment", "class"], BOUNDS, ours)
    library = prometheus_client.Histogram(
        "seconds", "What it is", ["deployment", "class"], buckets=BOUNDS, registry=theirs
    )

    for labels, seconds in seen:
        histogram.observe(seconds, *labels)
        library.labels(*labels).observe(seconds)

    assert shown(ours) == shown(theirs)


@given(st.lists(SECONDS))
def test_a_histogram_without_labels_is_there_from_the_start(seen: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("seconds", "What it is", [], BOUNDS, ours)
    library = prometheus_client.Histogram("seconds", "What it is", buckets=BOUNDS, registry=theirs)

    for seconds in seen:
        histogram.observe(seconds)
        library.observe(seconds)

    assert shown(ours) == shown(theirs)


@given(st.lists(st.tuples(LABELS, SECONDS)))
def test_a_counter_by_labels(seen: list[tuple[tuple[str, str], float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counter = Counter("jobs_total", "What it is", ["deployment", "class"], ours)
    library = prometheus_client.Counter("jobs_total", "What it is", ["deployment", "class"], registry=theirs)

    for labels, amount in seen:
        counter.add(*labels, amount=amount)
        library.labels(*labels).inc(amount)

    assert shown(ours) == shown(theirs)


def test_a_counter_without_labels_is_there_from_the_start_and_a_level_goes_down() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    Counter("jobs_total", "What it is", [], ours)
    level = Counter("calls", "What it is", ["deployment"], ours, is_level=True)
    prometheus_client.Counter("jobs_total", "What it is", registry=theirs)
    library = prometheus_client.Gauge("calls", "What it is", ["deployment"], registry=theirs)

    for amount in (1.0, 1.0, -1.0):
        level.add("light", amount=amount)
        library.labels("light").inc(amount)

    assert shown(ours) == shown(theirs)
