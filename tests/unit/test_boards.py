"""The boards are what `python -m tools.boards` writes; each alert is tested, and names a page that is there."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.prometheus import promtool
from tools.boards.boards import BOARDS, Board
from tools.boards.grafana import FOLDER, text

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "charts" / "pointsman" / "rules"
CASES = ROOT / "tests" / "rules" / "alerts.yaml"
METRICS = ROOT / "docs" / "guides" / "cluster.md"


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_board_is_as_it_is_written(board: Board) -> None:
    assert (FOLDER / f"{board.name}.json").read_text(encoding="utf-8") == text(board)


def test_every_board_has_an_id_of_its_own_and_panels_that_do_not_overlap() -> None:
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]

    assert len({each["uid"] for each in files}) == len(files) == len(BOARDS)
    for each in files:
        places = [place for panel in each["panels"] for place in _places(panel["gridPos"])]
        assert len(places) == len(set(places)), each["title"]
        assert len({panel["id"] for panel in each["panels"]}) == len(each["panels"])


def test_every_metric_that_a_board_or_an_alert_names_is_one_that_the_guide_has() -> None:
    described = set(re.findall(r"`(pointsman_\w+)`", METRICS.read_text(encoding="utf-8")))
    files = [*FOLDER.glob("*.json"), *RULES.glob("*.yaml")]
    named = {name for path in files for name in re.findall(r"pointsman_\w+", path.read_text(encoding="utf-8"))}

    assert {name.removesuffix("_bucket") for name in named} <= described


def test_the_rules_are_some_and_every_alert_fires_when_it_should_and_only_then() -> None:
    checked = promtool("check", "rules", *map(str, sorted(RULES.glob("*.yaml"))))
    tested = promtool("test", "rules", str(CASES))

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = [each for case in _yaml(CASES)["tests"] for each in case["alert_rule_test"]]
    fires = {each["alertname"] for each in cases if each["exp_alerts"]}
    quiet = {each["alertname"] for each in cases if not each["exp_alerts"]}

    assert fires == quiet == {rule["alert"] for rule in _rules()}


def test_every_alert_leads_to_a_page_that_says_what_to_do() -> None:
    for rule in _rules():
        page = ROOT / rule["annotations"]["runbook_url"]
        assert page.parent == ROOT / "docs" / "runbooks"
        assert f"`{rule['alert']}`" in page.read_text(encoding="utf-8"), rule["alert"]


def _rules() -> list[dict[str, Any]]:
    return [rule for path in RULES.glob("*.yaml") for group in _yaml(path)["groups"] for rule in group["rules"]]


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _places(at: dict[str, int]) -> list[tuple[int, int]]:
    return [(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
