"""Another service puts a job on Kafka and reads the answer, with confluent-kafka.

Wants POINTSMAN_KEY (an API key) and KAFKA (host:port) in the environment, and REPLY_TOPIC (one that the operator has
allowed in the tenant's `reply_topics`). KAFKA_PREFIX is the operator's `kafka.prefix`, if there is one.
"""

import json
import os
import uuid

from confluent_kafka import Consumer, KafkaException, Producer

KAFKA, PREFIX = os.environ["KAFKA"], os.environ.get("KAFKA_PREFIX", "")
REPLY_TOPIC = os.environ["REPLY_TOPIC"]


def main() -> None:
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
    consumer = Consumer({"bootstrap.servers": KAFKA, "group.id": f"example-{number}", "auto.offset.reset": "earliest"})
    consumer.subscribe([PREFIX + REPLY_TOPIC])
    producer = Producer({"bootstrap.servers": KAFKA, "acks": "all"})
    producer.produce(
        f"{PREFIX}jobs.inbox",
        json.dumps(question).encode(),
        headers=[(name, value.encode()) for name, value in headers.items()],
        on_delivery=safe,
    )
    producer.flush()
    while True:
        record = consumer.poll(1.0)
        if record is None:
            continue
        if record.error():
            raise KafkaException(record.error())
        if dict(record.headers() or []).get("correlation-id") == number.encode():
            answer = json.loads(record.value() or b"")
            break
    consumer.close()
    if answer["type"] == "job.completed":
        print(answer["result"]["choices"][0]["message"]["content"])
    else:
        print(f"{answer['type']}: {answer['error']}")


def safe(error: object, _: object) -> None:
    """Called once the record is on the topic, or is not."""
    if error is not None:
        raise SystemExit(f"the record is not on the topic: {error}")


if __name__ == "__main__":
    main()
