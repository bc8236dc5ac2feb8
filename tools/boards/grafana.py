"""A board as Grafana reads it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.boards.boards import Board, Panel

FOLDER = Path(__file__).resolve().parents[2] / "charts" / "pointsman" / "boards"
WIDTH, HEIGHT = 24, 8
SOURCE = {"type": "prometheus", "uid": "${source}"}


def text(board: Board) -> str:
    """Its file."""
    return json.dumps(_dashboard(board), indent=1, ensure_ascii=False) + "\n"


def _dashboard(board: Board) -> dict[str, Any]:
    return {
        "uid": f"pointsman-{board.name}",
        "title": board.title,
        "tags": ["pointsman"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "links": [{"type": "dashboards", "tags": ["pointsman"], "title": "Pointsman", "asDropdown": True}],
        "panels": list(_panels(board)),
    }


def _panels(board: Board) -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for row in board.rows:
        number += 1
        at = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "gridPos": at, "collapsed": False, "panels": []}
        x, y = 0, y + 1
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + HEIGHT
            number += 1
            yield _panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": HEIGHT})
            x += panel.width
        y += HEIGHT


def _panel(panel: Panel, number: int, at: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + n), "datasource": SOURCE, "expr": query, "legendFormat": legend}
        for n, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.what,
        "datasource": SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }
