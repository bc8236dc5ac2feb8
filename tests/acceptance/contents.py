"""Looks for what was said to models, and for keys, wherever they must not be, in all that a run has left."""

import asyncio
import itertools
import json
import re
import urllib.request
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from bench.crew import Crew
from router import topics
from router.log import Log
from tests.acceptance.refusals import Refused
from tools.kafka.broker import HOST

KEY = re.compile(r"pm-[\w-]{40,}")  # every API key that is drawn, by us or by a test
SPOKEN = {"content", "text", "input", "instructions", "prompt"}  # where a body has what somebody says
ERROR = re.compile(r"^(?:error|problem)\n(.*)$", re.MULTILINE)  # of a job, as `stored` has it
PLAIN = re.compile(r"[ -!#-\[\]-~]*")  # JSON has it as it is
LEAST_WORDS, SHORTEST = 3, 10  # less may stand anywhere
LONGEST = 80  # characters of a text that are looked for
MOST_TEXTS = 300
LEAST_KEY = 9  # characters: less is no key that a client would have
PAGE = 500


async def leaks(
    redis: "Redis",
    log: Log,
    *,
    outputs: Iterable[Path],
    urls: Iterable[str],
    refused: Sequence[Refused] = (),
    secrets: Sequence[str] = (),
) -> list[str]:
    """Where there is something that must not be there, without what it is.

    Texts of prompts and answers are taken from bodies that were refused or are on the log, and results on the board,
    and must be in nothing that processes print, no metric, no body of a 4xx or 5xx, no job's error, no header on the
    log and no name of a key in Redis. API keys, those of refused requests and `secrets` must neither be there nor in
    the values.
    """
    shown = printed(outputs) | await asyncio.to_thread(metrics, urls) | told(refused)
    kept = {f"the value of {name}": value async for name, value in stored(redis)}
    shown["names in Redis"] = "\n".join(kept)
    shown["errors of jobs"] = "\n".join(itertools.chain.from_iterable(map(ERROR.findall, kept.values())))
    for topic in await log.topics():
        records = [delivery.record async for delivery in log.read(topic)]
        kept[f"values of {topic}"] = "\n".join(each.value.decode("utf-8", "replace") for each in records)
        if topic != topics.INBOX:  # where other services write what they like
            headers = (json.dumps(dict(each.headers), ensure_ascii=False) for each in records)
            shown[f"headers of {topic}"] = "\n".join(headers)
    said = _said([*(each.asked for each in refused), *kept.values()])
    found = [f"a text in {place}" for place, text in shown.items() if any(each in text for each in said)]
    keys = {each.key for each in refused if len(each.key) >= LEAST_KEY}
    return found + with_keys(shown | kept, (*secrets, *keys))


async def leaks_of(ours: Crew, refused: Sequence[Refused] = ()) -> list[str]:
    """The same, of all that a drill has started."""
    core, members = ours.place.core, ours.members
    outputs, urls = [each.output for each in members], [f"http://{HOST}:{each.port}" for each in members]
    return await leaks(core.redis, core.log, outputs=outputs, urls=urls, refused=refused)


def printed(outputs: Iterable[Path]) -> dict[str, str]:
    """What processes have written, by its file."""
    return {f"what {each.name} has": each.read_text(encoding="utf-8", errors="replace") for each in outputs}


def told(refused: Iterable[Refused]) -> dict[str, str]:
    """What clients were refused with."""
    return {"bodies of refusals": "\n".join(each.told for each in refused)}


def metrics(urls: Iterable[str]) -> dict[str, str]:
    """Of the processes that still answer."""
    found = {}
    for url in urls:
        with suppress(OSError), urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
            found[f"metrics of {url}"] = answer.read().decode()
    return found


def with_keys(places: Mapping[str, str], secrets: Sequence[str]) -> list[str]:
    """The places in which there is an API key or one of these."""

    def has_any(text: str) -> bool:
        return KEY.search(text) is not None or any(each in text for each in secrets)

    return [f"a key in {place}" for place, text in places.items() if has_any(text)]


async def stored(redis: "Redis") -> AsyncIterator[tuple[str, str]]:
    """The name of every key, and all of its value, in lines."""
    names = [name async for name in redis.scan_iter(count=PAGE)]
    for first in range(0, len(names), PAGE):
        page = names[first : first + PAGE]
        async with redis.pipeline(transaction=False) as kinds:
            for name in page:
                kinds.type(name)
            found = await kinds.execute()
        async with redis.pipeline(transaction=False) as asked:
            for name, kind in zip(page, found, strict=True):
                _ask(asked, name, kind)
            answers = await asked.execute(raise_on_error=False)  # one may be another kind by now
        for name, answer in zip(page, answers, strict=True):
            yield name.decode(), b"\n".join(_flat(answer)).decode("utf-8", "replace")


def _ask(asked: Any, name: bytes, kind: bytes) -> None:
    match kind:
        case b"hash":
            asked.hgetall(name)
        case b"set":
            asked.smembers(name)
        case b"zset":
            asked.zrange(name, 0, -1)
        case b"list":
            asked.lrange(name, 0, -1)
        case b"stream":
            asked.xrange(name)
        case _:
            asked.get(name)


def _flat(value: object) -> Iterator[bytes]:
    match value:
        case bytes():
            yield value
        case dict():
            for name, each in value.items():
                yield from (*_flat(name), *_flat(each))
        case list() | tuple() | set():
            for each in value:
                yield from _flat(each)


def _said(values: Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    for line in itertools.chain.from_iterable(value.split("\n") for value in values):
        if line.startswith("{"):
            with suppress(ValueError, RecursionError):
                found |= dict.fromkeys(_spoken(json.loads(line), is_said=False))
    return list(itertools.islice(found, MOST_TEXTS))


def _spoken(value: object, *, is_said: bool) -> Iterator[str]:
    match value:
        case str() if is_said:
            found = PLAIN.match(value)
            text = found[0][:LONGEST].strip() if found else ""
            if len(text) >= SHORTEST and len(text.split()) >= LEAST_WORDS:
                yield text
        case dict():
            for name, each in value.items():
                yield from _spoken(each, is_said=name in SPOKEN)
        case list():
            for each in value:
                yield from _spoken(each, is_said=is_said)
