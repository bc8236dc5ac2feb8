"""Settings come from one file and from variables; whatever is wrong is said once, clearly, and without secrets."""

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gateway.check import Level, check
from gateway.settings import SHOWN_FAULTS, Settings, SettingsError, load
from policies.deployments import Modality, Tier
from policies.pricing import Meter
from policies.retries import RetryRule
from policies.tenants import Tenant

EXAMPLE = Path(__file__).parents[3] / "examples" / "pointsman.yaml"
SECRET = "sk-hunter2-hunter2"


class Folder:
    """A folder with a settings file in it."""

    def __init__(self, path: Path) -> None:
        self.file = path / "pointsman.yaml"

    def load(self, text: str, environ: Mapping[str, str] | None = None) -> Settings:
        self.file.write_text(text, encoding="utf-8")
        return load(self.file, environ or {})

    def refusal(self, text: str, environ: Mapping[str, str] | None = None) -> str:
        with pytest.raises(SettingsError) as raised:
            self.load(text, environ)
        return str(raised.value).replace(str(self.file.parent) + "/", "")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_no_file_is_needed() -> None:
    settings = load(None, {})

    assert settings.tenants_by_name() == {"default": Tenant("default")}
    assert settings.deployments_by_name() == {}
    assert settings.is_embedded
    assert settings.log == "streams:"
    assert settings.worker.retry_rule() == RetryRule()


def test_the_path_may_come_from_a_variable(folder: Folder) -> None:
    folder.file.write_text("http:\n  port: 4321\n", encoding="utf-8")

    assert load(None, {"POINTSMAN_CONFIG": str(folder.file)}).http.port == 4321


# The example


def test_the_example_uses_every_section_and_has_no_faults() -> None:
    settings = load(EXAMPLE, {})

    assert [str(finding) for finding in check(settings) if finding.level is Level.ERROR] == []
    assert settings.model_fields_set == set(Settings.model_fields) - {"prices"}
    assert "# prices: " in EXAMPLE.read_text(encoding="utf-8")


def test_the_example_shows_every_setting_of_the_plain_sections_with_its_default() -> None:
    shown = load(EXAMPLE, {})
    default = load(None, {})

    left_out = {"mechanism", "username", "password", "ca_file", "mean_usd"}
    sections = ("http", "board", "worker", "sweeper", "files", "batches", "kafka", "routing")
    for name in (*sections, "pod_grace_s", "log", "redis", "objects"):
        assert getattr(shown, name) == getattr(default, name)
    for name in sections:
        section = getattr(shown, name)
        assert set(type(section).model_fields) - section.model_fields_set <= left_out


def test_the_example_prices_both_tiers_and_needs_no_network() -> None:
    deployments = load(EXAMPLE, {}).deployments_by_name()

    assert {deployment.tier for deployment in deployments.values()} == {Tier.LIGHT, Tier.HEAVY}
    assert {deployment.backend for deployment in deployments.values()} == {"echo"}
    assert all(deployment.price is not None for deployment in deployments.values())


def test_what_the_example_shows_in_comments_is_valid_too(folder: Folder) -> None:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("  # local:"))
    end = next(number for number in range(start, len(lines)) if not lines[number].startswith("  # "))
    for number in range(start, end):
        lines[number] = "  " + lines[number].removeprefix("  # ")

    settings = folder.load("\n".join(lines), {"LOCAL_API_KEY": SECRET})

    assert settings.secret_for("local") == SECRET
    assert settings.deployments_by_name()["local"].modalities == {Modality.TEXT, Modality.IMAGE}


# What the values become


def test_a_tenant_and_a_deployment_become_the_policies_values(folder: Folder) -> None:
    settings = folder.load(
        """
tenants:
  acme:
    limits: {requests_per_minute: 60, concurrency: 3, usd_per_month: "12.50"}
    deployments: [big]
    aliases: {gpt-4o: big}
    reruns: refuse
deployments:
  big:
    backend: gpu
    url: http://127.0.0.1:8000/v1/
    model: some/model
    tier: heavy
    price: {input: "1.25", output: 10}
    timeouts: {total_s: 120}
    microbatch: {size: 4}
"""
    )

    acme = settings.tenants_by_name()["acme"]
    assert acme.limits.usd_per_month == Decimal("12.50")
    assert acme.limits.tokens_per_minute is None
    assert acme.deployments == frozenset({"big"})
    assert acme.aliases == {"gpt-4o": "big"}
    assert not acme.reruns_allowed
    big = settings.deployments_by_name()["big"]
    assert big.url == "http://127.0.0.1:8000/v1"
    assert big.timeouts.total == 120
    assert big.microbatch_size == 4
    assert big.price is not None
    assert big.price.per_million == {Meter.INPUT: Decimal("1.25"), Meter.OUTPUT: Decimal(10)}
    assert settings.secret_for("big") is None


def test_a_price_by_name_comes_from_the_book_and_from_the_operators_own_book(folder: Folder) -> None:
    own = folder.file.parent / "own.yaml"
    own.write_text('version: "9"\nprices:\n  mine: {input: "7", output: "8", source: "contract"}\n', encoding="utf-8")

    settings = folder.load(
        """
prices: own.yaml
deployments:
  a: {backend: echo, model: a, tier: light, price: demo-light}
  b: {backend: echo, model: b, tier: heavy, price: mine}
  c: {backend: echo, model: gpt-4o, tier: heavy}
  d: {backend: echo, model: d, tier: heavy, price: not-in-the-book}
"""
    )

    prices = {name: deployment.price for name, deployment in settings.deployments_by_name().items()}
    assert prices["a"] is not None
    assert prices["b"] is not None
    assert prices["b"].source == "contract (9)"
    assert prices["c"] is None  # a server of one's own may use any model name
    assert prices["d"] is None


def test_a_fault_in_the_operators_price_book_is_a_fault_in_the_settings(folder: Folder) -> None:
    own = folder.file.parent / "own.yaml"
    own.write_text('version: "9"\nprices:\n  mine: {input: 7, source: "contract"}\n', encoding="utf-8")

    assert folder.refusal("prices: own.yaml\n").startswith("own.yaml:3: mine.input must be dollars")
    assert "absent.yaml: cannot be read" in folder.refusal("prices: absent.yaml\n")


def test_sizes_are_bytes_or_text(folder: Folder) -> None:
    settings = folder.load(
        'http: {max_body: "1 MiB", max_in_flight_bytes: "64MB"}\nworker: {look_ahead_bytes: 2097152}\n'
    )

    assert settings.http.max_body == 1_048_576
    assert settings.http.max_in_flight_bytes == 64_000_000
    assert settings.worker.look_ahead_bytes == 2_097_152
    assert 'must be a number of bytes, or text such as "32 MiB"' in folder.refusal("http: {max_body: much}")


def test_a_section_without_content_has_its_defaults(folder: Folder) -> None:
    settings = folder.load("worker:\n  # lease_s: 3\nhttp:\n  port:\ntenants:\n  acme:\n    limits:\n")

    assert settings.worker == load(None, {}).worker
    assert settings.http.port == 4000
    assert settings.tenants_by_name() == {"acme": Tenant("acme")}


def test_a_deployment_from_the_command_line_is_checked_like_the_files() -> None:
    settings = load(None, {}).with_deployment(
        "local", {"backend": "gpu", "model": "m", "tier": "light", "url": "http://h:1/v1", "api_key": SECRET}
    )

    assert settings.deployments_by_name()["local"].url == "http://h:1/v1"
    assert settings.secret_for("local") == SECRET
    with pytest.raises(SettingsError, match=r"command line: deployments\.local: a gpu deployment needs"):
        settings.with_deployment("local", {"backend": "gpu", "model": "m", "tier": "light"})


@pytest.mark.parametrize(
    ("log", "servers"),
    [("streams:", ()), ("kafka://a:9092", ("a:9092",)), ("kafka://a:9092,[::1]:9093", ("a:9092", "[::1]:9093"))],
)
def test_the_log_names_its_servers(log: str, servers: tuple[str, ...]) -> None:
    assert load(None, {"POINTSMAN_LOG": log}).kafka_servers == servers


@pytest.mark.parametrize(("durability", "replicas"), [("fsync", 0), ("none", 0), ("replicas:2", 2)])
def test_durability_says_how_many_replicas(durability: str, replicas: int) -> None:
    assert load(None, {"POINTSMAN_BOARD__DURABILITY": durability}).board.replicas == replicas


# What is refused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("worker:\n  leese_s: 20\n", "pointsman.yaml:2: worker.leese_s: unknown setting; did you mean lease_s?"),
        ("wroker:\n", "pointsman.yaml:1: wroker: unknown setting; did you mean worker?"),
        ("data: x\nport: 4000\n", "pointsman.yaml:2: port: unknown setting; did you mean http.port?"),
        (
            "tenants:\n  acme:\n    limits:\n      request_per_minute: 3\n",
            "pointsman.yaml:4: tenants.acme.limits.request_per_minute: unknown setting;"
            " did you mean requests_per_minute?",
        ),
        (
            "board:\n  qqq: 1\n",
            "pointsman.yaml:2: board.qqq: unknown setting; known here: durability, rebuild, socket_timeout_s, ca_file",
        ),
        ("worker:\n  lease_s: 61\n", "pointsman.yaml:2: worker.lease_s: must be a number at least 1 and at most 60"),
        ("worker:\n  lease_s: soon\n", "pointsman.yaml:2: worker.lease_s: must be a number at least 1"),
        ("worker:\n  lease_s: .nan\n", "pointsman.yaml:2: worker.lease_s: must be a number at least 1"),
        ("worker:\n  lease_s: yes\n", "pointsman.yaml:2: worker.lease_s: must be a number at least 1"),
        ("worker:\n  look_ahead: 1.5\n", "pointsman.yaml:2: worker.look_ahead: must be a whole number at least 1"),
        ("worker: 3\n", "pointsman.yaml:1: worker: must be a section with settings of its own"),
        ("tenants: []\n", "pointsman.yaml:1: tenants: must be a section with settings of its own"),
        ("tenants: {}\n", "pointsman.yaml:1: tenants: must have at least 1 item"),
        ("log: nats://x\n", "pointsman.yaml:1: log: must be streams: or kafka://host:port"),
        ("log: kafka://x:99999\n", "pointsman.yaml:1: log: must be streams: or kafka://host:port"),
        ("objects: ftp://x\n", "pointsman.yaml:1: objects: must be file:"),
        (
            "board:\n  durability: replicas:9\n",
            "pointsman.yaml:2: board.durability: must be fsync, none, or replicas:N",
        ),
        ("kafka:\n  security: sasl_ssl\n", "pointsman.yaml:1: kafka: security sasl_ssl needs username and password"),
        ("kafka:\n  username: x\n", "pointsman.yaml:1: kafka: username and password need security sasl_ssl"),
        (
            "http: {max_body: 300 MiB}\n",
            "pointsman.yaml:1: http: max_in_flight_bytes must be at least max_body",
        ),
        (
            "http:\n  cors_origins: [app.example]\n",
            "pointsman.yaml:2: http.cors_origins[0]: must be the origin of a page",
        ),
        ("http:\n  cors_origins: ['https://a/b']\n", "pointsman.yaml:2: http.cors_origins[0]: must be the origin"),
        ("http:\n  cors_origins: ['http://a:b']\n", "pointsman.yaml:2: http.cors_origins[0]: must be the origin"),
        ("tenants:\n  Acme Ltd: {}\n", "pointsman.yaml:2: tenants.Acme Ltd: is no name for a tenant"),
        (
            "tenants:\n  acme:\n    limits:\n      usd_per_month: 9.99\n",
            "pointsman.yaml:4: tenants.acme.limits.usd_per_month: must be dollars as text",
        ),
        (
            "tenants:\n  acme:\n    reruns: maybe\n",
            "pointsman.yaml:3: tenants.acme.reruns: must be 'allow' or 'refuse'",
        ),
        ("tenants:\n  acme:\n    aliases:\n      auto: x\n", "pointsman.yaml:4: tenants.acme.aliases.auto: is taken"),
    ],
)
def test_a_fault_is_named_with_file_line_key_and_what_is_expected(folder: Folder, text: str, said: str) -> None:
    refusal = folder.refusal(text)

    assert refusal.startswith(said)
    assert "\n" not in refusal


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("{request_ttl_s: 59}", "d.sagemaker.request_ttl_s: must be a whole number at least 60 and at most 21600"),
        ("{request_ttl_s: 21601}", "d.sagemaker.request_ttl_s: must be a whole number at least 60 and at most 21600"),
        (
            "{invocation_timeout_s: 0}",
            "d.sagemaker.invocation_timeout_s: must be a whole number at least 1 and at most 3600",
        ),
        (
            "{invocation_timeout_s: 3601}",
            "d.sagemaker.invocation_timeout_s: must be a whole number at least 1 and at most 3600",
        ),
        ("{realtime: true, queue: 'https://q/1'}", "d.sagemaker: a realtime endpoint answers at once"),
        ("{tokens_per_s: 20}", "d.sagemaker: tokens_per_s is of a realtime endpoint"),
        ("{realtime: true}", "d: a realtime endpoint has 60 s for a call, and typical_s is more"),
    ],
)
def test_what_an_endpoint_of_sagemaker_does_not_take_is_refused_at_load(folder: Folder, place: str, said: str) -> None:
    told = place.replace("{", "{region: us-east-1, ")
    lines = ["backend: sagemaker", "model: m", "tier: light", "typical_s: 61", f"sagemaker: {told}"]

    refusal = folder.refusal("deployments:\n  d:\n" + "".join(f"    {line}\n" for line in lines))

    assert f": deployments.{said}" in refusal


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("price: {input: 0.15, output: 1}", "d.price.input: write it as a string, in quotes"),
        ('price: {input: "0.1234567", output: "1"}', "d.price.input: must be dollars per million as text"),
        ('price: {input: "-1", output: "1"}', "d.price.input: must be dollars per million as text"),
        ("price: {}", "d.price: must be a name in the price book, or input and output"),
        ('price: {name: demo-light, input: "1"}', "d.price: must be a name in the price book, or input and output"),
        ("price: 3", "d.price: must be a section"),
        ("tier: medium", "d.tier: must be 'light' or 'heavy'"),
        ("backend: cloud", "d.backend: must be 'gpu', 'echo', 'bedrock' or 'sagemaker'"),
        ("model: 4.1", "d.model: must be text; put it in quotes"),
        ("modalities: [text, smell]", "d.modalities[1]: must be 'text', 'image'"),
        ("modalities: []", "d.modalities: must have at least 1 item"),
        ("url: localhost:8000", "d.url: must be http://host or https://host"),
        ("url: http://me:pw@host/v1", "d.url: must have no user, password"),
        ("api_key: ${NOT_THERE}", "d.api_key: names the environment variable NOT_THERE, which is not set"),
        ("backend: gpu", "d: a gpu deployment needs its server's url"),
    ],
)
def test_a_fault_in_a_deployment_is_named(folder: Folder, line: str, said: str) -> None:
    fields = {"backend": "echo", "model": "m", "tier": "light"}
    key, _, value = line.partition(": ")
    lines = [f"    {name}: {plain}" for name, plain in (fields | {key: value}).items()]

    refusal = folder.refusal("\n".join(["deployments:", "  d:", *lines]))

    assert f": deployments.{said}" in refusal
    assert "\n" not in refusal


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("worker: {}\nhttp: {}\nworker: {}\n", "pointsman.yaml:3: worker: is there twice, first in line 1; keep one"),
        ("http:\n  port: 1\n  port: 1\n", "pointsman.yaml:3: http.port: is there twice, first in line 2; keep one"),
        ("http:\n  port: [1\n", "pointsman.yaml:3: is not YAML"),
        ("http:\n\tport: 1\n", "pointsman.yaml:2: is not YAML"),
        ("- http\n", "pointsman.yaml:1: must hold `name: value` pairs"),
        ("just text\n", "pointsman.yaml:1: must hold `name: value` pairs"),
        ("? [a, b]\n: c\n", "pointsman.yaml:1: has a key that is no name"),
        ("http: &a\n  port: 1\nworker: *a\n", "pointsman.yaml:1: worker: is an alias"),
        ("data: !!python/object/apply:os.getcwd []\n", "pointsman.yaml:1: data: has a tag"),
        ("data: x\n---\ndata: y\n", "pointsman.yaml:2: is not YAML"),
        ("data: x\x00\n", "pointsman.yaml:1: has a character that YAML does not allow"),
        ("a: " + "[" * 5000, "pointsman.yaml"),
        ("a: " + "[" * 40 + "]" * 40, "pointsman.yaml:1: a[0][0]: is nested deeper than 20 levels"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(folder: Folder, text: str, said: str) -> None:
    assert folder.refusal(text).startswith(said)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    not_utf8 = tmp_path / "latin.yaml"
    not_utf8.write_bytes(b"data: \xe9\n")
    too_large = tmp_path / "large.yaml"
    too_large.write_bytes(b"#" * 2_000_001)

    for path, said in [
        (tmp_path / "absent.yaml", "cannot be read: No such file"),
        (tmp_path, "cannot be read: Is a directory"),
        (not_utf8, "is not UTF-8"),
        (too_large, "is larger than"),
    ]:
        with pytest.raises(SettingsError, match=said):
            load(path, {})


def test_all_faults_are_told_at_once_in_the_order_of_their_lines(folder: Folder) -> None:
    refusal = folder.refusal("http:\n  port: x\nworkers: {}\nboard:\n  durability: much\n", {"POINTSMAN_DATAS": "x"})

    assert [line.split(": ")[0].strip() for line in refusal.splitlines()] == [
        "4 faults in the settings:",
        "POINTSMAN_DATAS",
        "pointsman.yaml:2",
        "pointsman.yaml:3",
        "pointsman.yaml:5",
    ]


def test_a_flood_of_faults_and_a_huge_key_make_a_short_message(folder: Folder) -> None:
    flood = folder.refusal("\n".join(f"key{number}: 1" for number in range(1000)))
    huge = folder.refusal(f"? {'k' * 100_000}\n: 1\n")

    assert flood.startswith("1000 faults in the settings:")
    assert flood.endswith("... and 980 more")
    assert len(flood.splitlines()) == SHOWN_FAULTS + 2
    assert len(huge) < 500


# Variables


def test_a_variable_wins_over_the_file(folder: Folder) -> None:
    settings = folder.load(
        "worker:\n  lease_s: 30\n  look_ahead: 7\ntenants:\n  big-co: {}\ndeployments:\n"
        "  gpt-4.1: {backend: echo, model: m, tier: light, price: demo-light}\n",
        {
            "POINTSMAN_WORKER__LEASE_S": "15",
            "POINTSMAN_LOG": "kafka://h:9092",
            "POINTSMAN_TENANTS__BIG_CO__LIMITS__USD_PER_MONTH": "3.50",
            "POINTSMAN_TENANTS__BIG_CO__DEPLOYMENTS": "gpt-4.1, other",
            "POINTSMAN_DEPLOYMENTS__GPT_4_1__API_KEY": SECRET,
            "POINTSMAN_DEPLOYMENTS__GPT_4_1__PRICE__NAME": "demo-heavy",
        },
    )

    assert settings.worker.lease_s == 15
    assert settings.worker.look_ahead == 7
    assert settings.log == "kafka://h:9092"
    assert settings.tenants_by_name()["big-co"].limits.usd_per_month == Decimal("3.50")
    assert settings.tenants_by_name()["big-co"].deployments == frozenset({"gpt-4.1", "other"})
    assert settings.secret_for("gpt-4.1") == SECRET
    assert settings.deployments_by_name()["gpt-4.1"].price == settings.price_book.find("demo-heavy")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("POINTSMAN_WORKER__LEASES", "9", "unknown variable; did you mean POINTSMAN_WORKER__LEASE_S?"),
        ("POINTSMAN_WORKER_LEASE_S", "9", "unknown variable; did you mean POINTSMAN_WORKER__LEASE_S?"),
        ("POINTSMAN_PORT", "4000", "unknown variable; did you mean POINTSMAN_HTTP__PORT?"),
        ("POINTSMAN_LOGS", "x", "unknown variable; did you mean POINTSMAN_LOG?"),
        ("POINTSMAN_WORKER", "x", "worker is a section; name one of its settings, as in POINTSMAN_WORKER__LEASE_S"),
        ("POINTSMAN_LOG__URL", "x", "log has nothing below it"),
        ("POINTSMAN_TENANTS__DEFALT__DEADLINE_S", "9", "tenants has no DEFALT; did you mean DEFAULT?"),
        ("POINTSMAN_DEPLOYMENTS__NEW__TIER", "light", "deployments has no NEW; a variable only changes"),
        ("POINTSMAN_WORKER__LEASE_S", "61", "worker.lease_s: must be a number at least 1 and at most 60"),
        ("POINTSMAN_HTTP__PORT", "web", "http.port: must be a whole number at least 0 and at most 65535"),
    ],
)
def test_a_wrong_variable_is_named_with_what_is_expected(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load(None, {name: value})

    assert str(raised.value).startswith(f"{name}: {said}")


def test_names_that_a_variable_cannot_tell_apart_are_not_guessed(folder: Folder) -> None:
    refusal = folder.refusal("tenants: {a-b: {}, a.b: {}}\n", {"POINTSMAN_TENANTS__A_B__DEADLINE_S": "60"})

    assert refusal.endswith("tenants has several names that this could mean: a-b, a.b")


def test_variables_that_are_no_settings_are_left_alone() -> None:
    environ = {
        "PATH": "/bin",
        "POINTSMAN_API_KEY": SECRET,
        "POINTSMAN_UPSTREAM_KEY": SECRET,
        "POINTSMAN_TEST_KAFKA": "127.0.0.1:9092",
        "POINTSMAN_HTTP__PORT": "",  # Compose passes what is not set like this
        # What Kubernetes tells the pods beside Services of ours:
        "POINTSMAN_SERVICE_HOST": "10.0.0.7",
        "POINTSMAN_SERVICE_PORT": "4000",
        "POINTSMAN_SERVICE_PORT_HTTP": "4000",
        "POINTSMAN_PORT": "tcp://10.0.0.7:4000",
        "POINTSMAN_PORT_4000_TCP": "tcp://10.0.0.7:4000",
        "POINTSMAN_PORT_4000_TCP_PROTO": "tcp",
        "POINTSMAN_PORT_4000_TCP_PORT": "4000",
        "POINTSMAN_PORT_4000_TCP_ADDR": "10.0.0.7",
        "POINTSMAN_WORKER_GPU_SERVICE_HOST": "10.0.0.8",
        "POINTSMAN_WORKER_GPU_PORT": "tcp://10.0.0.8:4001",
    }

    assert load(None, environ) == load(None, {})


# Secrets


def test_a_secret_in_a_url_is_quoted_for_it() -> None:
    settings = load(None, {"POINTSMAN_REDIS": "redis://:${PASSWORD}@host:6379/1", "PASSWORD": "p@ss/word"})

    assert settings.redis == "redis://:p%40ss%2Fword@host:6379/1"
    assert not settings.is_embedded


@pytest.mark.parametrize(
    "text",
    [
        f"redis: {SECRET}\n",
        f"redis: redis://:{SECRET}@host:port\n",
        f"redis: ftp://:{SECRET}@host\n",
        f"redis: redis://:{SECRET}@[::1\n",
        f"redis: [{SECRET}]\n",
        f"deployments:\n  d:\n    api_key: [{SECRET}]\n",
        f"deployments:\n  d:\n    api_key: *{SECRET}\n",
        f"deployments:\n  d:\n    api_key: !{SECRET}\n",
        f"deployments:\n  d:\n    api_key: !{SECRET}!x y\n",
        f"deployments:\n  d:\n    api_key: '{SECRET}\n",
        f"deployments:\n  d:\n    api_key: @{SECRET}\n",
        f"deployments:\n  d:\n    api_key: {SECRET}: x\n",
        f"deployments:\n  d:\n    api_key: {SECRET}\n",
        f"deployments:\n  d:\n    url: http://me:{SECRET}@host:port\n",
        f"deployments:\n  d: {SECRET}\n",
        f"kafka:\n  security: ssl\n  password: {SECRET}\n",
        f"deployments: {SECRET}\n",
    ],
)
def test_a_refusal_never_shows_a_value(folder: Folder, text: str) -> None:
    refusal = folder.refusal(text)

    assert "hunter2" not in refusal


def test_the_settings_can_be_printed_without_showing_a_secret() -> None:
    settings = load(
        EXAMPLE,
        {
            "POINTSMAN_REDIS": f"redis://:{SECRET}@host",
            "POINTSMAN_KAFKA__SECURITY": "sasl_ssl",
            "POINTSMAN_KAFKA__USERNAME": "me",
            "POINTSMAN_KAFKA__PASSWORD": SECRET,
            "POINTSMAN_DEPLOYMENTS__LIGHT__API_KEY": SECRET,
        },
    )

    assert SECRET in settings.redis
    assert SECRET not in repr(settings)
    assert SECRET not in str(settings)


# Whatever stands in the file


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
names = st.sampled_from([*Settings.model_fields, "lease_s", "limits", "price", "input", "url", "d"]) | st.text(
    max_size=5
)
trees = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4))


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.one_of(st.dictionaries(names, trees, max_size=5).map(yaml.safe_dump), st.text(max_size=60)))
def test_any_text_is_settings_or_one_clear_refusal(folder: Folder, text: str) -> None:
    try:
        settings = folder.load(text)
    except SettingsError as error:
        assert 0 < len(str(error)) < 20_000
    else:
        check(settings)
