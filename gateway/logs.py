"""Logs: one event a step, with fields; JSON, or lines for people on a terminal. Never content, never a key."""

import logging
import sys
from collections.abc import Iterator
from itertools import islice
from traceback import format_tb

import structlog
from structlog.typing import ExcInfo

MOST_LINES = 200


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
        processors=[*steps, renderer],
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
    logging.basicConfig(handlers=[of_libraries], level=logging.WARNING)


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
