"""Kafka behind SASL and TLS, Redis behind a user's password and TLS: reached with the settings, not without them."""

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway import wiring
from gateway.settings import Settings, SettingsError
from policies.scripts import BoardRefusedError, BoardUnavailableError
from router.log import LogRefusedError, LogUnavailableError, Record
from tests.secure import USER, SecureStores, secure_stores

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Generator[SecureStores]:
    """One of each, for all tests here."""
    with secure_stores(tmp_path_factory.mktemp("secure")) as opened:
        yield opened


def _settings(stores: SecureStores, folder: Path, *, board: Mapping[str, Any] | None = None, **kafka: Any) -> Settings:
    login = {"security": "sasl_ssl", "username": USER, "password": stores.password, "ca_file": str(stores.ca_file)}
    values = {
        "log": f"kafka://{stores.kafka}",
        "redis": f"rediss://{USER}:{stores.password}@{stores.redis}/0",
        "objects": f"file://{folder}",
        "kafka": {"partitions": 1, "prefix": f"{folder.name}.", **login, **kafka},
        "board": {"socket_timeout_s": 3, "ca_file": str(stores.ca_file), **(board or {})},
        "http": {"accept_wait_s": 5},
    }
    return Settings.model_validate(values)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_record_goes_through_both(stores: SecureStores, tmp_path: Path, mechanism: str) -> None:
    async with wiring.core(_settings(stores, tmp_path, mechanism=mechanism)) as core:
        await core.board.epoch()
        key = await core.keys.create("default", "first")
        await core.log.create(["jobs"])
        await core.log.append("jobs", Record(b"hello"))
        found = [each.record.value async for each in core.log.read("jobs")]

        assert found == [b"hello"]
        assert await core.keys.find(key.text) is not None


@pytest.mark.parametrize(
    ("kafka", "kind", "said"),
    [
        ({"password": "another"}, LogRefusedError, "kafka.password is wrong"),
        ({"mechanism": "SCRAM-SHA-256", "password": "another"}, LogRefusedError, "kafka.password is wrong"),
        ({"ca_file": None}, LogRefusedError, "set kafka.ca_file"),
        ({"security": "plaintext", "username": "", "password": None}, LogUnavailableError, "does not answer at"),
    ],
    ids=[
        "a wrong password",
        "a wrong password that is not sent",
        "an authority that we do not know",
        "no login at all",
    ],
)
async def test_kafka_lets_nobody_else_in_and_which_setting_is_wrong_is_said(
    stores: SecureStores, tmp_path: Path, kafka: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        async with wiring.core(_settings(stores, tmp_path, **kafka)):
            pass


async def test_redis_lets_nobody_else_in_and_which_setting_is_wrong_is_said(
    stores: SecureStores, tmp_path: Path
) -> None:
    right = _settings(stores, tmp_path)
    wrong = {
        "user or password": right.model_copy(update={"redis": f"rediss://{USER}:another@{stores.redis}/0"}),
        "no database": right.model_copy(update={"redis": f"rediss://{USER}:{stores.password}@{stores.redis}/999"}),
        "set board.ca_file": right.model_copy(update={"board": Settings().board}),
    }
    without_tls = f"redis://{USER}:{stores.password}@{stores.redis}/0"

    for said, settings in wrong.items():
        async with wiring.core(settings) as core:
            with pytest.raises(BoardRefusedError, match=said):
                await core.board.epoch()
    async with wiring.core(right.model_copy(update={"redis": without_tls, "board": Settings().board})) as core:
        with pytest.raises(BoardUnavailableError):
            await core.board.epoch()


def test_authorities_that_cannot_be_read_are_said_and_where(tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing.crt", tmp_path / "empty.crt"
    empty.write_text("nothing")

    for path in (missing, empty):
        settings = Settings.model_validate({"redis": "rediss://valkey", "board": {"ca_file": str(path)}})
        with pytest.raises(SettingsError, match=r"board\.ca_file: cannot be used"):
            wiring.open_redis(settings)
