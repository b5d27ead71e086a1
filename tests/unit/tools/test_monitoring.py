"""The board and the alerts in `contrib`: current, whole, and each alert with a page that says what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from barnabas.pipelines.progress_metrics import ProgressMetrics
from tests.unit.pipelines.test_progress_metrics import BATCH, Told
from tools import grafana_board

ROOT = Path(__file__).resolve().parents[3]
ALERTS = ROOT / "contrib" / "prometheus" / "alerts.yml"
OF_PIPELINES = ROOT / "contrib" / "prometheus" / "pipelines.yml"
RUNBOOKS = ROOT / "docs" / "runbooks"


def alerts() -> list[dict[str, Any]]:
    return [
        rule
        for file in (ALERTS, OF_PIPELINES)
        for group in yaml.safe_load(file.read_text("utf-8"))["groups"]
        for rule in group["rules"]
    ]


@pytest.mark.parametrize("board", grafana_board.BOARDS, ids=lambda board: board.file.name)
def test_a_board_is_what_its_program_makes(board: grafana_board.Board) -> None:
    assert board.file.read_text("utf-8") == grafana_board.text(board), "run python -m tools.grafana_board"


@pytest.mark.parametrize("which", grafana_board.BOARDS, ids=lambda board: board.file.name)
def test_panels_of_a_board_lie_side_by_side_and_say_of_what_they_are(which: grafana_board.Board) -> None:
    board = json.loads(grafana_board.text(which))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
        for target in panel.get("targets", []):
            assert 'job="$job"' in target["expr"], panel["title"]
            assert 'topic=""' in target["expr"] or "brokertopicmetrics" not in target["expr"], "a topic counts twice"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_board_and_the_alerts_of_pipelines_ask_for_what_a_run_tells() -> None:
    metrics = ProgressMetrics("delays", Told(), {})
    metrics.batch(BATCH)
    told = {sample.name for each in text_string_to_metric_families(metrics.text().decode()) for sample in each.samples}
    for file, least in ((OF_PIPELINES, 4), (grafana_board.PIPELINES.file, 12)):
        asked = set(re.findall(r"\bbarnabas_pipeline_[a-z_]+", file.read_text("utf-8")))
        assert len(asked) >= least
        assert asked - told == set(), file


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_and_has_a_page(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"]["summary"]
    page = ROOT / rule["annotations"]["runbook"]
    text = page.read_text("utf-8")
    assert text.startswith(f"# {rule['alert']}: ")
    assert "\n## Look\n" in text
    assert "\n## Do\n" in text


def test_no_page_is_without_its_alert_and_their_links_lead_somewhere() -> None:
    pages = {ROOT / rule["annotations"]["runbook"] for rule in alerts()}
    assert set(RUNBOOKS.glob("*.md")) == pages
    operating = (ROOT / "docs" / "operating.md").read_text("utf-8")
    for page in pages:
        assert f"runbooks/{page.name}" in operating
        for link in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
