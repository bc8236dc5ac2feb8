"""Stands in for kcat where it is not installed: the options that our guide uses, on the library below kcat."""

import argparse
import sys
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

TIMEOUT_S = 20.0

Headers = list[tuple[str, bytes]]


def main() -> None:
    """What the arguments say."""
    parser = argparse.ArgumentParser(prog="kcat", allow_abbrev=False)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("-P", dest="produce", action="store_true")
    mode.add_argument("-C", dest="produce", action="store_false")
    parser.add_argument("-b", dest="brokers", required=True)
    parser.add_argument("-t", dest="topic", required=True)
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-o", dest="offset", choices=["beginning"])
    parser.add_argument("-e", dest="until_the_end", action="store_true", required="-C" in sys.argv)
    parser.add_argument("-f", dest="form", default="%s\\n")
    asked = parser.parse_args()
    produce(asked) if asked.produce else consume(asked)


def produce(asked: argparse.Namespace) -> None:
    """Each line of the input is a record."""
    producer = Producer({"bootstrap.servers": asked.brokers})
    headers = [(name, value.encode()) for name, _, value in (each.partition("=") for each in asked.headers)]
    for line in sys.stdin:
        producer.produce(asked.topic, line.rstrip("\n").encode(), headers=headers)
    assert producer.flush(TIMEOUT_S) == 0, "the broker did not take everything"


def consume(asked: argparse.Namespace) -> None:
    """All that is there, then end."""
    options = {"group.id": "kcat", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": asked.brokers, "auto.offset.reset": "earliest", **options})
    partitions = consumer.list_topics(asked.topic, TIMEOUT_S).topics[asked.topic].partitions
    consumer.assign([TopicPartition(asked.topic, number, 0) for number in partitions])
    left = len(partitions)
    while left:
        record = consumer.poll(TIMEOUT_S)
        assert record is not None, "the broker does not answer"
        if (error := record.error()) is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            left -= 1
            continue
        headers = ",".join(f"{name}={_text(value)}" for name, value in cast("Headers", record.headers() or []))
        shown = asked.form.replace("\\n", "\n").replace("%h", headers).replace("%s", _text(record.value()))
        sys.stdout.write(shown)
    consumer.close()


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


if __name__ == "__main__":
    main()
