"""What is logged where no terminal is: one JSON object a line, whoever says it."""

import json
import subprocess
import sys
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
    raise ValueError("whatever")
except ValueError:
    logging.getLogger("theirs").exception("it broke")
"""


def test_ours_and_those_of_libraries_are_json_with_an_event_and_a_level() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAYS], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    ours, word, broke = map(json.loads, done.stderr.splitlines())
    assert (ours["event"], ours["level"], ours["tokens"]) == ("job_ended", "info", 7)
    assert (word["event"], word["level"], word["logger"]) == ("a word of\na library", "warning", "theirs")
    assert (broke["event"], broke["level"]) == ("it broke", "error")
    assert "ValueError: whatever" in broke["exception"]
    assert all(each["timestamp"] for each in (ours, word, broke))
