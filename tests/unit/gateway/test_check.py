"""The preflight on settings finds what cannot work together, and says what to do."""

from collections.abc import Mapping

import pytest

from gateway.check import Finding, Level, check
from gateway.settings import DAY_S, Settings

PRICE = {"input": "1", "output": "2"}


def a_deployment(tier: object = "light", **changes: object) -> dict[str, object]:
    return {"backend": "echo", "model": "m", "tier": tier, "price": PRICE, **changes}


def settings_with(light: Mapping[str, object] | None = None, **sections: object) -> Settings:
    deployments = {"light": a_deployment(**(light or {})), "heavy": a_deployment("heavy")}
    return Settings.model_validate({"deployments": deployments, **sections})


def found(settings: Settings) -> set[tuple[str, str]]:
    return {(finding.level.value, finding.where) for finding in check(settings)}


def test_two_priced_tiers_with_default_time_outs_have_no_findings() -> None:
    assert check(settings_with()) == []


@pytest.mark.parametrize(
    ("timeouts", "where"),
    [
        ({"total_s": 360}, "total_s"),
        ({"total_s": 400}, "total_s"),
        ({"read_s": 300}, "read_s"),
        ({"first_token_s": 90}, "first_token_s"),
        ({"first_token_s": 5}, "connect_s"),
    ],
)
def test_each_time_out_must_be_longer_than_the_one_inside_it(timeouts: dict[str, float], where: str) -> None:
    assert found(settings_with({"timeouts": timeouts})) == {("error", f"deployments.light.timeouts.{where}")}


def test_a_time_out_with_little_room_is_a_warning() -> None:
    [finding] = check(settings_with({"timeouts": {"total_s": 310}}))

    assert finding == Finding(
        Level.WARNING,
        "deployments.light.timeouts.total_s",
        "pod_grace_s is 360 s and deployments.light.timeouts.total_s is 310 s; give pod_grace_s at least 372 s",
    )


def test_the_lease_is_not_part_of_the_chain() -> None:
    timeouts = {"connect_s": 0.1, "first_token_s": 1, "read_s": 2, "total_s": 3}

    assert check(settings_with({"timeouts": timeouts}, worker={"lease_s": 60})) == []


@pytest.mark.parametrize(
    ("drain_s", "log", "expected"),
    [
        (350, "streams:", set()),
        (351, "streams:", {("warning", "worker.drain_s")}),
        (360, "streams:", {("error", "worker.drain_s")}),
        (30, "streams:", set()),
        (300, "kafka://h:1", set()),
        (299, "kafka://h:1", {("warning", "worker.drain_s")}),
    ],
)
def test_a_drain_ends_before_the_pod_is_killed_and_in_a_cluster_not_before_the_calls(
    drain_s: float, log: str, expected: set[tuple[str, str]]
) -> None:
    settings = settings_with(
        log=log,
        worker={"drain_s": drain_s},
        redis="redis://h",
        objects="s3://bucket",
        kafka={"replication": 3, "security": "ssl"},
    )

    assert found(settings) == expected


def test_a_cluster_that_shares_nothing_is_warned_about() -> None:
    settings = settings_with(log="kafka://h:1", worker={"drain_s": 300})

    assert found(settings) == {
        ("warning", "kafka.replication"),
        ("warning", "kafka.security"),
        ("warning", "redis"),
        ("warning", "objects"),
    }


def test_authorities_for_a_redis_without_tls_are_an_error() -> None:
    board = {"ca_file": "/ca.crt"}

    assert found(settings_with(redis="redis://valkey", board=board)) == {("error", "board.ca_file")}
    assert found(settings_with(redis="rediss://valkey", board=board)) == set()


def test_a_topic_keeps_a_job_for_longer_than_its_deadline() -> None:
    tenants = {"a": {"deadline_s": 2 * DAY_S + 1}}

    assert ("error", "kafka.retention_s") in found(settings_with(log="kafka://h:1", tenants=tenants))
    assert check(settings_with(tenants=tenants)) == []


def test_more_time_than_a_synchronous_endpoint_gives_is_a_warning() -> None:
    sync = a_deployment(backend="sagemaker", sagemaker={"region": "us-east-1", "realtime": True})
    patient = a_deployment(backend="sagemaker", sagemaker={"region": "us-east-1"})
    short = {"first_token_s": 20, "read_s": 40, "total_s": 60}

    def about(light: Mapping[str, object]) -> set[tuple[str, str]]:
        return found(Settings.model_validate({"deployments": {"light": light, "heavy": a_deployment("heavy")}}))

    assert about(sync) == {("warning", "deployments.light.timeouts.total_s")}
    assert about(patient) == about({**sync, "timeouts": short}) == set()


def test_no_deployment_is_a_warning() -> None:
    assert found(Settings()) == {("warning", "deployments")}


def test_a_missing_tier_is_a_warning_that_names_it() -> None:
    [finding] = check(Settings.model_validate({"deployments": {"light": a_deployment()}}))

    assert (finding.level, finding.where) == (Level.WARNING, "deployments")
    assert "the tier heavy" in finding.message


def test_a_deployment_without_text_counts_for_no_tier() -> None:
    deployments = {"light": a_deployment(), "vectors": a_deployment("heavy", modalities=["embedding"])}

    assert found(Settings.model_validate({"deployments": deployments})) == {("warning", "deployments")}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"price": None}, 'write price: {input: "0.15", output: "0.60"}'),
        ({"price": None, "model": "gpt-4o"}, "the price book has `price: gpt-4o`"),
        ({"price": "demo-lite"}, "the price book has no demo-lite; did you mean demo-light?"),
        ({"price": "zzzzzzzz"}, "the price book has no zzzzzzzz; known are demo-light"),
        ({"price": {"input": "1"}}, "has no output"),
        ({"price": {"cache_read": "1"}}, "has no input and no output"),
    ],
)
def test_a_price_that_is_not_known_is_a_warning(changes: dict[str, object], said: str) -> None:
    [finding] = check(settings_with(changes))

    assert (finding.level, finding.where) == (Level.WARNING, "deployments.light.price")
    assert said in finding.message


def test_embeddings_need_no_price_for_output() -> None:
    vectors = a_deployment(modalities=["embedding"], price="text-embedding-3-small")

    assert check(settings_with().with_deployment("vectors", vectors)) == []


def test_a_budget_that_cannot_count_a_deployment_is_a_warning_for_who_may_use_it() -> None:
    limits = {"usd_per_month": "10"}
    tenants = {"all": {"limits": limits}, "some": {"limits": limits, "deployments": ["heavy"]}}

    assert found(settings_with({"price": None}, tenants=tenants)) == {
        ("warning", "deployments.light.price"),
        ("warning", "tenants.all.limits.usd_per_month"),
    }


def test_an_answer_as_long_as_the_window_is_an_error() -> None:
    assert found(settings_with({"window": 1024})) == {("error", "deployments.light.max_output")}


@pytest.mark.parametrize(
    ("tenant", "expected"),
    [
        ({"aliases": {"gpt-4o": "light", "gpt-5": "auto", "o3": "auto:heavy"}}, None),
        ({"aliases": {"gpt-4o": "lihgt"}}, ("error", "aliases.gpt-4o", "did you mean light?")),
        ({"aliases": {"gpt-4o": "auto:huge"}}, ("error", "aliases.gpt-4o", "did you mean auto:heavy?")),
        ({"aliases": {"o3": "heavy"}, "deployments": ["light"]}, ("error", "aliases.o3", "add it there")),
        ({"aliases": {"light": "heavy"}}, ("warning", "aliases.light", "hides the deployment")),
        ({"deployments": ["light", "hevy"]}, ("error", "deployments", "did you mean heavy?")),
        ({"deployments": []}, ("warning", "deployments", "every job is refused")),
        ({"result_ttl_s": 60, "max_result_ttl_s": 59}, ("error", "result_ttl_s", "above max_result_ttl_s, 59 s")),
    ],
)
def test_a_tenant_may_only_name_what_is_there(tenant: dict[str, object], expected: tuple[str, str, str] | None) -> None:
    findings = check(settings_with(tenants={"acme": tenant}))

    if expected is None:
        assert findings == []
    else:
        level, where, said = expected
        [finding] = findings
        assert (finding.level.value, finding.where) == (level, f"tenants.acme.{where}")
        assert said in finding.message


def test_two_processes_on_one_port_are_a_warning_unless_any_port_will_do() -> None:
    same = {"worker": {"health_port": 4000}}
    free = {"http": {"port": 0}, "worker": {"health_port": 0}, "sweeper": {"health_port": 0}}

    assert found(settings_with(**same)) == {("warning", "worker.health_port")}
    assert check(settings_with(**free)) == []


def test_errors_come_first() -> None:
    levels = [finding.level for finding in check(settings_with({"price": None, "window": 1024}))]

    assert levels == [Level.ERROR, Level.WARNING]


@pytest.mark.parametrize(
    ("fallback", "more", "said"),
    [
        (["heavvy"], {}, "error: AT[0]: names heavvy, which is no deployment; did you mean heavy?"),
        (["light"], {}, "error: AT[0]: names the deployment itself"),
        (["heavy", {"deployment": "heavy"}], {}, "error: AT[1]: names heavy a second time"),
        (["heavy"], {"window": 65536}, "warning: AT[0]: heavy has a window of 8192 and light of 65536"),
        (["heavy"], {"modalities": ["text", "image"]}, "warning: AT[0]: heavy does not do image"),
    ],
)
def test_a_fallback_that_cannot_help_is_found(fallback: list[object], more: dict[str, object], said: str) -> None:
    [finding] = check(settings_with({"fallback": fallback, **more}))

    assert str(finding).startswith(said.replace("AT", "deployments.light.fallback"))


def test_two_deployments_may_stand_in_for_each_other() -> None:
    deployments = {"light": a_deployment(fallback=["heavy"]), "heavy": a_deployment("heavy", fallback=["light"])}

    assert check(Settings.model_validate({"deployments": deployments})) == []


def test_a_fallback_that_lacks_tools_or_prefill_is_a_warning() -> None:
    deployments = {
        "light": a_deployment(fallback=["heavy"]),
        "heavy": a_deployment("heavy", tools=False, prefill=False),
    }
    [finding] = check(Settings.model_validate({"deployments": deployments}))

    assert "heavy does not do tools, prefill" in finding.message
