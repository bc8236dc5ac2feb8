"""Real servers for tests, started once: `valkey_url`, `kafka_bootstrap`; and what a test opens on them."""

import itertools
import signal
from collections.abc import AsyncGenerator, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog
from redis.asyncio import Redis

from policies.scripts import Scripts
from router.log import Log
from tests.aws import CREDENTIALS
from tests.doubles import aws_double
from tests.servers import DATABASES, LogPlace, a_valkey, kafka, redis_client, valkey


def pytest_configure() -> None:
    """No example fails for the time that it takes: that is the machine's, and how much else it does.

    What a shell starts in the background ignores Ctrl-C, and so does all that it starts: commands under test heed it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hypothesis.settings.register_profile(
        "ours", hypothesis.settings(), deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("ours")


@pytest.fixture(scope="session", autouse=True)
def _short_tracebacks() -> None:
    """As the product writes them. structlog's own show every local's value, which takes up to a minute each."""
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])


@pytest.fixture(scope="session")
def valkey_url() -> Generator[str]:
    """`redis://host:port` of a Valkey without persistence."""
    with valkey() as url:
        yield url


@pytest.fixture
def own_valkey() -> Generator[str]:
    """`redis://host:port` of a Valkey without persistence that the test may do anything to."""
    with a_valkey() as server:
        yield server.connection_url


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """`host:port` of a real Kafka. Skips where there is none, and fails in CI."""
    directory: Path = tmp_path_factory.mktemp("kafka")
    with kafka(directory) as bootstrap:
        yield bootstrap


@pytest.fixture(scope="session")
def _databases() -> Iterator[int]:
    return itertools.cycle(range(DATABASES))


@pytest.fixture
def redis_url(valkey_url: str, _databases: Iterator[int]) -> str:
    """`redis://host:port/n`: a database that no test uses at the same time; `redis` empties it."""
    return f"{valkey_url}/{next(_databases)}"


@pytest.fixture
async def redis(redis_url: str) -> AsyncGenerator["Redis"]:
    """A client with an empty database of its own. Channels of pub/sub are everybody's: name them after a tenant."""
    async with redis_client(redis_url) as client:
        await client.flushdb()
        yield client


@pytest.fixture
def scripts(redis: "Redis") -> Scripts:
    """Runs scripts on the test's own database."""
    return Scripts(redis)


@pytest.fixture(params=["streams", "kafka"])
def log_place(request: pytest.FixtureRequest) -> LogPlace:
    """Where `log` is, for tests that open it once more or from another process."""
    kind: str = request.param
    return LogPlace.fresh(kind, request.getfixturevalue("kafka_bootstrap" if kind == "kafka" else "redis_url"))


@pytest.fixture
async def log(log_place: LogPlace) -> AsyncGenerator[Log]:
    """A log without topics, on Redis Streams and on Kafka."""
    async with log_place.open() as opened:
        yield opened


@pytest.fixture(scope="session")
def aws() -> Iterator[str]:
    """The address of a double of AWS, which takes seconds to start. What a test makes there has a name of its own."""
    with aws_double() as url:
        yield url


@pytest.fixture
def aws_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What AWS' own library takes for the double."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
