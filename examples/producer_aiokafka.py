"""Another service puts a job on Kafka and reads the answer, with aiokafka.

Wants POINTSMAN_KEY (an API key) and KAFKA (host:port) in the environment, and REPLY_TOPIC (one that the operator has
allowed in the tenant's `reply_topics`). KAFKA_PREFIX is the operator's `kafka.prefix`, if there is one.
"""

import asyncio
import json
import os
import uuid

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

KAFKA, PREFIX = os.environ["KAFKA"], os.environ.get("KAFKA_PREFIX", "")
REPLY_TOPIC = os.environ["REPLY_TOPIC"]


async def main() -> None:
    """Ask one question and print the answer."""
    question = {"model": "auto", "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    number = str(uuid.uuid4())  # stands for this piece of work: in doubt, put the record there again
    headers = {
        "endpoint": "/v1/chat/completions",
        "authorization": f"Bearer {os.environ['POINTSMAN_KEY']}",
        "idempotency-key": number,
        "correlation-id": number,
        "reply-topic": REPLY_TOPIC,
    }
    async with (
        AIOKafkaConsumer(PREFIX + REPLY_TOPIC, bootstrap_servers=KAFKA, auto_offset_reset="earliest") as consumer,
        AIOKafkaProducer(bootstrap_servers=KAFKA, acks="all") as producer,
    ):
        await producer.send_and_wait(
            f"{PREFIX}jobs.inbox",
            json.dumps(question).encode(),
            headers=[(name, value.encode()) for name, value in headers.items()],
        )
        async for record in consumer:
            if dict(record.headers).get("correlation-id") == number.encode():
                answer = json.loads(record.value)
                break
    if answer["type"] == "job.completed":
        print(answer["result"]["choices"][0]["message"]["content"])
    else:
        print(f"{answer['type']}: {answer['error']}")


if __name__ == "__main__":
    asyncio.run(main())
