"""Logs: one event a step, with fields; JSON, or lines for people on a terminal. Never content, never a key."""

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from traceback import format_tb

import structlog
from structlog.typing import EventDict, ExcInfo

MOST_LINES = 200
QUIET_S = 30.0
REMEMBERED = 256


def configure() -> None:
    """Everything goes to standard error."""
    renderer = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    steps: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.ExceptionRenderer(_where),
    ]
    structlog.configure(
        processors=[*steps[:1], _OnceInAWhile(), *steps[1:], renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    of_libraries = logging.StreamHandler(sys.stderr)
    of_libraries.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*steps, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    of_libraries.addFilter(_OnceInAWhile().is_due)
    logging.basicConfig(handlers=[of_libraries], level=logging.WARNING)


class _OnceInAWhile:
    """Lets a warning that says the same again through once in `QUIET_S`, with how many were `left_out` before it.

    What is away is tried again about every second, by several tasks of each process.
    """

    def __init__(self) -> None:
        self._said: OrderedDict[str, tuple[float, int]] = OrderedDict()  # when last, and how many times since

    def __call__(self, _: object, method: str, event: EventDict) -> EventDict:
        """As a step of structlog's."""
        if method != "warning":
            return event
        left_out = self._look(repr(sorted(event.items())))
        if left_out is None:
            raise structlog.DropEvent
        return {**event, "left_out": left_out} if left_out else event

    def is_due(self, record: logging.LogRecord) -> bool:
        """As a filter of logging's; what libraries call an error is often the same."""
        return record.exc_info is not None or self._look(f"{record.name} {record.getMessage()}") is not None

    def _look(self, said: str) -> int | None:
        """How many were left out before this one; None: leave it out as well."""
        now = time.monotonic()
        at, left_out = self._said.pop(said, (float("-inf"), 0))
        is_due = now - at >= QUIET_S
        self._said[said] = (now, 0) if is_due else (at, left_out + 1)
        if len(self._said) > REMEMBERED:
            self._said.popitem(last=False)
        return left_out if is_due else None


def _where(exc_info: ExcInfo) -> str:
    """Where it was raised and what it is, then its causes. Not what it says, which may hold what a client sent."""
    return "".join(islice(_lines(exc_info[1]), MOST_LINES))


def _lines(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield from format_tb(error.__traceback__)
        yield f"{type(error).__name__}\n"
        for each in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
            yield from _lines(each)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
