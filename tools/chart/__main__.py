"""Writes the schema where Helm looks for it: `python -m tools.chart`."""

import json
from pathlib import Path

from tools.chart.schema import schema

PLACE = Path(__file__).resolve().parents[2] / "charts" / "pointsman" / "values.schema.json"


def text() -> str:
    """The schema as it is shipped."""
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    PLACE.write_text(text(), encoding="utf-8")
