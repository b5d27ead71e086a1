"""`barnabas simulate`: one line per run, what was found, and an exit status that says so."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from barnabas.cli.simulate import command
from barnabas.sasl import json_web_keys
from barnabas.sasl.errors import LoginConfigError
from barnabas.testing import cluster_simulation
from barnabas.testing.cluster_history import History
from barnabas.testing.cluster_plan import Plan
from barnabas.testing.cluster_plans import PLANS
from barnabas.testing.cluster_simulation import Report
from barnabas.testing.faults import FaultKind
from barnabas.testing.simulation import SimulationFailedError

Handler = Callable[[int], logging.Handler]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """The runs that were asked for; seed 2 finds something, and seed 3 fails altogether."""
    asked: list[tuple[int, str]] = []

    def simulate(seed: int, plan: Plan, *, handler: Handler | None = None) -> Report:
        asked.append((seed, plan.name))
        if handler is not None:
            handler(1).close()
            assert handler(1) is handler(1)
        if seed == 3:
            raise SimulationFailedError("a broker has exited")
        findings = ("check_order: a record is twice",) if seed == 2 else ()
        strikes = {FaultKind.CRASH: 2, FaultKind.POWER: 0}
        return Report(seed, plan.name, findings, Counter(elections=5), strikes, 60.0, 700, 650, History())

    monkeypatch.setattr(cluster_simulation, "simulate", simulate)
    return asked


def test_a_run_without_findings(runs: list[tuple[int, str]]) -> None:
    result = CliRunner().invoke(command, ["--seed", "1", "--plan", "keeping"])
    assert result.exit_code == 0
    # Sixty virtual seconds take two real ones: neither may pass for the other.
    real_seconds = re.search(r"simulated in (\d+\.\d) s", result.output)
    assert real_seconds is not None
    assert float(real_seconds[1]) < 30
    assert result.output == (
        f"seed 1, plan keeping: 0 findings in 60.0 s of virtual time, simulated in {real_seconds[1]} s; "
        "700 records acknowledged, 650 read; struck by 2 crash; 5 elections\n"
    )
    assert runs == [(1, "keeping")]


def test_findings_and_failures_end_with_1_after_all_runs(runs: list[tuple[int, str]]) -> None:
    result = CliRunner().invoke(command, ["--seed", "1", "--runs", "3", "--plan", "power"])
    assert result.exit_code == 1
    assert "  check_order: a record is twice\n" in result.output
    assert "seed 3, plan power: a broker has exited\n" in result.output
    assert runs == [(1, "power"), (2, "power"), (3, "power")]


def test_all_plans_with_a_log_file_for_each_broker(runs: list[tuple[int, str]], tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--logs", str(tmp_path / "logs")])
    assert result.exit_code == 0
    assert runs == [(1, name) for name in PLANS]
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == sorted(
        f"{name}-1-broker-1.log" for name in PLANS
    )


def test_every_plan_can_be_chosen() -> None:
    option = next(parameter for parameter in command.params if parameter.name == "plan")
    assert isinstance(option.type, click.Choice)
    assert list(option.type.choices) == [*PLANS, "all"]


def test_what_makes_certificates_and_tokens_is_needed_by_one_plan_only(
    runs: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise LoginConfigError("signed tokens need the libraries PyJWT and cryptography: pip install 'barnabas[oauth]'")

    monkeypatch.setattr(json_web_keys, "check_library", missing)
    result = CliRunner().invoke(command, ["--plan", "credentials"])
    assert (result.exit_code, runs) == (1, [])
    assert "pip install 'barnabas[oauth]'" in result.output
    result = CliRunner().invoke(command, ["--plan", "all"])
    assert result.exit_code == 0
    assert "The other plans are run." in result.output
    assert [name for _, name in runs] == [name for name in PLANS if name != "credentials"]
