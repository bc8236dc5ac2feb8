"""AWS' services as coroutines: a call is one try, in a thread of its own, and its errors are ours."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
)

from consumers.aws.sagemaker_clients import AwsClients, read_most
from consumers.aws.sagemaker_payloads import refused
from consumers.backend import BackendError
from policies.deployments import SageMaker
from policies.retries import Failure

SHOWN = 500  # characters of what AWS says

Got = TypeVar("Got")


class Aws:
    """Every failure is a `BackendError`, whose code is AWS' own."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._clients = AwsClients()

    async def ask(self, place: SageMaker, service: str, operation: str, **arguments: object) -> Any:
        """One call, by the names of boto3."""
        act = getattr(self._clients.of(place, service), operation)
        return await self._in_thread(partial(act, **arguments))

    async def read(self, body: Any, most: int) -> bytes:
        """So much of what an answer carries."""
        return await self._in_thread(partial(read_most, body, most))

    async def _in_thread(self, act: Callable[[], Got]) -> Got:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, act)
        except ClientError as error:
            raise _of_code(error) from error
        except (ConnectTimeoutError, EndpointConnectionError) as error:
            raise BackendError(Failure.UNAVAILABLE, "AWS could not be reached", code=type(error).__name__) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise BackendError(Failure.MISCONFIGURED, "there are no AWS credentials", code="credentials") from error
        except BotoCoreError as error:  # a connection that broke, an answer that did not come
            raise BackendError(Failure.TIMED_OUT, "AWS did not answer", code=type(error).__name__) from error


def _of_code(error: ClientError) -> BackendError:
    """By the service's own code; its status where that is unknown."""
    told = error.response.get("Error", {})
    code, message = str(told.get("Code", "")), str(told.get("Message", ""))[:SHOWN]
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if "Throttl" in code or status == 429:
        failure = Failure.THROTTLED
    elif code == "ModelError":
        said = f"error ({error.response.get('OriginalStatusCode', '')}) from: {message}"
        failure = refused(str(error.response.get("OriginalMessage", "")).encode(), said)
    elif code in ("AccessDenied", "AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException"):
        failure = Failure.MISCONFIGURED
    elif status == 503 or code == "ServiceUnavailable":
        failure = Failure.UNAVAILABLE
    elif status >= 500:
        failure = Failure.BACKEND_ERROR
    elif "not found" in message or "takes" in message or status in (401, 403, 404):
        failure = Failure.MISCONFIGURED
    else:
        failure = Failure.REJECTED
    return BackendError(failure, message or code, code=code)
