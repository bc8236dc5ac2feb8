"""AWS' own clients: one for each service of a place, which tries each call once."""

from contextlib import closing
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from policies.deployments import Bedrock, SageMaker

THREADS = 16  # calls to AWS at once
CONNECT_S, READ_S = 5.0, 20.0
LONG_READ_S = 65.0  # a synchronous endpoint gives up after 60, a queue answers after 20
_LONG = frozenset({"sagemaker-runtime", "sqs"})


class AwsError(Exception):
    """AWS refused or could not be asked; the message says which, for an operator."""


class AwsClients:
    """Made when they are first asked for, from one thread: boto3 says that its clients may be shared, not made."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str, str], Any] = {}

    def of(self, place: SageMaker | Bedrock, service: str) -> Any:
        """AWS' client of a service, by its name there."""
        key = (place.region, place.aws_url, service)
        if key not in self._made:
            config = Config(
                retries={"total_max_attempts": 1},
                connect_timeout=CONNECT_S,
                read_timeout=LONG_READ_S if service in _LONG else READ_S,
                max_pool_connections=THREADS,
            )
            session = boto3.session.Session(region_name=place.region)
            self._made[key] = session.client(service, config=config, endpoint_url=place.aws_url or None)
        return self._made[key]


def words(error: ClientError | BotoCoreError) -> str:
    """What AWS says, in one line."""
    if isinstance(error, ClientError):
        told = error.response.get("Error", {})
        return f"{told.get('Code')}: {told.get('Message')}"
    return str(error)


def read_most(body: Any, most: int) -> bytes:
    """So much of what an answer carries. Raises BotoCoreError where the connection broke before its end.

    A read may give less than was asked for without a word; only the next one says that the rest will not come.
    """
    pieces = []
    with closing(body):
        while most > 0 and (piece := body.read(most)):
            pieces.append(piece)
            most -= len(piece)
    return b"".join(pieces)
