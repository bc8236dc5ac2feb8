"""The topics are those of the lanes that the deployments make, and the fixed ones."""

from math import inf

from policies.deployments import Deployment, Modality, Tier
from router import topics
from router.job import Estimate, Job, JobClass, Route

DAY_S = 86_400.0


def a_deployment(name: str, backend: str = "gpu", tier: Tier = Tier.LIGHT, *more: Modality) -> Deployment:
    return Deployment(name, backend, "m", tier, modalities=frozenset({Modality.TEXT, *more}))


def by_name(*deployments: Deployment) -> dict[str, Deployment]:
    return {each.name: each for each in deployments}


def test_a_lane_has_a_topic_for_each_class_and_one_for_overflow() -> None:
    names = topics.all_topics(by_name(a_deployment("a")))

    assert names[:4] == (
        "jobs.gpu.text.light.interactive",
        "jobs.gpu.text.light.standard",
        "jobs.gpu.text.light.bulk",
        "jobs.gpu.text.light.overflow",
    )
    assert names[4:] == topics.FIXED


def test_the_fixed_topics_are_always_there() -> None:
    assert set(topics.all_topics({})) == {
        "jobs.inbox",
        "jobs.retry.30s",
        "jobs.retry.2m",
        "jobs.retry.10m",
        "jobs.dead",
        "jobs.events",
        "ledger.charges",
        "keys.changes",
    }


def test_the_ledger_outlives_a_month_and_keys_outlive_everything() -> None:
    assert topics.kept_s("ledger.charges", 3 * DAY_S) == 40 * DAY_S
    assert topics.kept_s("ledger.charges", 90 * DAY_S) == 90 * DAY_S
    assert topics.kept_s("keys.changes", 3 * DAY_S) == inf
    assert topics.kept_s("jobs.events", 3 * DAY_S) == 3 * DAY_S


def test_deployments_that_share_a_lane_share_its_topics() -> None:
    one = topics.all_topics(by_name(a_deployment("a")))
    two = topics.all_topics(by_name(a_deployment("b"), a_deployment("a")))

    assert one == two


def test_a_worker_reads_the_urgent_topics_of_all_its_lanes_first_and_no_others() -> None:
    names = topics.for_backend(
        "gpu",
        by_name(
            a_deployment("a", "gpu", Tier.LIGHT, Modality.IMAGE_GENERATION),
            a_deployment("b", "gpu", Tier.HEAVY),
            a_deployment("c", "bedrock", Tier.HEAVY),
        ),
    )

    assert names[:3] == (
        "jobs.gpu.image_generation.light.interactive",
        "jobs.gpu.text.heavy.interactive",
        "jobs.gpu.text.light.interactive",
    )
    assert [name.rsplit(".", 1)[1] for name in names[::3]] == ["interactive", "standard", "bulk", "overflow"]
    assert len(names) == 12


def test_a_backend_without_deployments_reads_nothing() -> None:
    assert topics.for_backend("sagemaker", by_name(a_deployment("a"))) == ()


def test_a_jobs_own_topic_is_among_them() -> None:
    job = Job(
        id="job_1",
        tenant="t",
        endpoint="/v1/chat/completions",
        model="auto",
        job_class=JobClass.BULK,
        route=Route("a", "gpu", Modality.TEXT, Tier.LIGHT),
        estimate=Estimate(1, 1),
        body=b"{}",
        created_at=0.0,
        expires_at=1.0,
        result_ttl_s=1.0,
    )

    assert job.topic in topics.all_topics(by_name(a_deployment("a")))
    assert job.topic == topics.name(job.route.lane, "bulk")
