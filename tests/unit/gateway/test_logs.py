"""What is logged where no terminal is: one JSON object a line, whoever says it."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SAYS = """
import logging
import structlog
from gateway import logs

logs.configure()
structlog.get_logger("ours").info("job_ended", tokens=7)
logging.getLogger("theirs").warning("a %s of\\na library", "word")
logging.getLogger("theirs").info("too quiet to be heard")
try:
    try:
        int("the patient has")
    except ValueError as error:
        raise ExceptionGroup("the patient has", [RuntimeError("the patient has")]) from error
except ExceptionGroup:
    logging.getLogger("theirs").exception("it broke")
    structlog.get_logger("ours").exception("it_broke")
"""


def test_ours_and_those_of_libraries_are_json_with_an_event_and_a_level() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAYS], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    ours, word, broke, ours_broke = map(json.loads, done.stderr.splitlines())
    assert (ours["event"], ours["level"], ours["tokens"]) == ("job_ended", "info", 7)
    assert (word["event"], word["level"], word["logger"]) == ("a word of\na library", "warning", "theirs")
    assert (broke["event"], broke["level"]) == ("it broke", "error")
    for each in (broke, ours_broke):
        assert 'File "<string>", line ' in each["exception"]
        kinds = [each["exception"].index(kind) for kind in ("ExceptionGroup", "RuntimeError", "ValueError")]
        assert kinds == sorted(kinds)
    assert "patient" not in done.stderr, "what an exception says may be what a client sent"
    assert all(each["timestamp"] for each in (ours, word, broke))


AGAIN = """
import logging
import structlog
from gateway import logs

logs.configure()
ours = structlog.get_logger("ours")
for number in range(300):
    ours.warning("start_waits", why="Redis did not answer")
    ours.warning("job_swept", job=number)
    ours.info("job_ended", tokens=7)
    logging.getLogger("theirs").error("no connection to %s", "here")
"""


def test_a_warning_that_says_the_same_is_said_once_in_a_while_and_all_else_each_time() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AGAIN], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    events = Counter(json.loads(line)["event"] for line in done.stderr.splitlines())
    assert events == {"start_waits": 1, "no connection to here": 1, "job_swept": 300, "job_ended": 300}
