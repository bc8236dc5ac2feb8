"""The messages of endpoints in their queues, and what was heard from them and not used yet."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import structlog

from consumers.aws.sagemaker_aws import Aws
from consumers.aws.sagemaker_notices import Told, is_canary, mark, read
from consumers.backend import Notice
from policies.deployments import SageMaker

log = structlog.get_logger(__name__)

LISTEN_S, MESSAGES = 20, 10  # the longest and the most that one receive takes; API reference of ReceiveMessage
UNSEEN_S = 30  # a message that is not acknowledged comes again after that
REMEMBERED = 10_000  # messages whose jobs were not looked at yet


class Messages:
    """Of all endpoints with a queue; about jobs of these tenants. `heard` is told each of them."""

    def __init__(
        self,
        aws: Aws,
        places: Collection[SageMaker],
        tenants: Collection[str],
        heard: Callable[[Told], None],
    ) -> None:
        self._aws = aws
        self._heard = heard
        self._queues: Mapping[str, SageMaker] = {place.queue: place for place in places if place.queue}
        self._tenants = {mark(tenant): tenant for tenant in tenants}
        self._told: OrderedDict[str, Told] = OrderedDict()

    async def listen(self) -> Sequence[Notice]:
        """Wait for messages, 20 s at most. Those about no call of ours stay for whoever they are for."""
        if not self._queues:
            await asyncio.sleep(LISTEN_S)
            return ()
        heard = await asyncio.gather(*(self._hear(queue, place) for queue, place in self._queues.items()))
        return [notice for each in heard for notice in each]

    def take(self, call: str) -> Told | None:
        """What was heard of a call, once."""
        return self._told.pop(call, None)

    def remember(self, told: Told) -> None:
        """It was heard of in another way."""
        self._told[str(told.call)] = told
        while len(self._told) > REMEMBERED:
            self._told.popitem(last=False)

    async def acknowledge(self, queue: str, handle: str) -> None:
        """Take a message from its queue. Raises `BackendError`."""
        await self._aws.ask(self._queues[queue], "sqs", "delete_message", QueueUrl=queue, ReceiptHandle=handle)

    async def _hear(self, queue: str, place: SageMaker) -> list[Notice]:
        given = await self._aws.ask(
            place,
            "sqs",
            "receive_message",
            QueueUrl=queue,
            MaxNumberOfMessages=MESSAGES,
            WaitTimeSeconds=LISTEN_S,
            VisibilityTimeout=UNSEEN_S,
            MessageSystemAttributeNames=["SentTimestamp"],
        )
        notices = []
        for message in given.get("Messages", []):
            told = read(message["Body"])
            tenant = self._tenants.get(told.call.tenant_mark) if told else None
            if told is None and is_canary(message["Body"]):
                await self._leave_canary(queue, place, message)
                continue
            if told is None or tenant is None:
                log.warning("foreign_message", queue=queue.rpartition("/")[2], message=message["MessageId"])
                continue
            self.remember(told)
            self._heard(told)
            notices.append(Notice(tenant, told.call.job_id, told.call.attempt, (queue, message["ReceiptHandle"])))
        return notices

    async def _leave_canary(self, queue: str, place: SageMaker, message: Mapping[str, Any]) -> None:
        """Whoever checks the way to the queue waits for it; an old one is waited for by nobody."""
        named = {"QueueUrl": queue, "ReceiptHandle": message["ReceiptHandle"]}
        if time.time() - int(message["Attributes"]["SentTimestamp"]) / 1000 > UNSEEN_S:
            await self._aws.ask(place, "sqs", "delete_message", **named)
        else:
            await self._aws.ask(place, "sqs", "change_message_visibility", **named, VisibilityTimeout=1)
