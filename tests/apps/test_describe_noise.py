"""Table one with noise: the budget, the figures, and a server that asks for more."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import get_sigma_gaussian
from flwr.app import Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from apps.client_app import app as client_app
from apps.server_app import app as server_app
from clients.describe import DescribeClient
from clients.vfb2 import NoModel
from methods.cohort import Cohort
from methods.noisy_counts import NOISE_OF, answer_bins, answer_totals, deviation_of, fit_counts
from methods.private import BudgetError
from payloads.description import BINS, QUANTILES, BinQuestion
from payloads.settings import PrivacySettings, TrainingSettings
from payloads.wire import PHASE, ROUND
from simulations.engines.grid import task_identity
from simulations.engines.in_process import InProcessGrid
from tests.apps.test_describe import CONFIG, column, describe, table
from tests.apps.test_describe_attacks import COLUMNS, cohort
from tests.battery.federation import flat_config, serve

BUDGET = PrivacySettings(epsilon=1.0, delta=1e-5)
# the groups of counts that a row changes: all rows, one text column; and of 2 numbers the bins of powers of 2, whose
# noise of twice the deviation has a quarter of the weight, and the bins that follow
GROUPS = 1 + 1 + 2 * (1 / 4 + 1)
QUESTION = BinQuestion(borders=np.tile([-1.0, 0.0, 0.5, 2.0], (2, 1)), origins=np.zeros(0))


def weigh(site: Cohort) -> np.ndarray:
    """Return all counts of a site without noise, each divided by the factor of its noise."""
    totals = answer_totals(site, 0.0)
    bins = [answer_bins(site, QUESTION, 0.0).counts / factor for factor in NOISE_OF.values()]
    return np.concatenate([totals.rows, totals.gaps, totals.marks, *bins])


@pytest.mark.parametrize("seed", range(3))
def test_a_row_changes_the_counts_by_at_most_the_budgeted_length(seed: int) -> None:
    site = cohort(seed)
    whole, lengths = weigh(site), []
    for row in range(len(site)):
        kept = np.arange(len(site)) != row
        lengths.append(np.linalg.norm(whole - weigh(Cohort(0, COLUMNS, site.values[kept], site.labels[kept], 5))))
    assert max(lengths) == pytest.approx(GROUPS**0.5)
    assert deviation_of(BUDGET, COLUMNS, 1) == pytest.approx(GROUPS**0.5 * get_sigma_gaussian(1.0, 1e-5))


def test_the_noise_has_its_deviation_in_every_count() -> None:
    site = cohort(0)
    client = DescribeClient(site, NoModel(), TrainingSettings())  # type: ignore[arg-type]
    client.budget, client.inbox = BUDGET, QUESTION
    phases = ["totals", *NOISE_OF]
    exact = [answer_totals(site, 0.0), *(answer_bins(site, QUESTION, 0.0) for _ in NOISE_OF)]
    for phase, truth, factor in zip(phases, exact, [1.0, *NOISE_OF.values()], strict=True):
        noise = []
        for _ in range(150):
            client.fit([np.zeros(0)], {ROUND: 0, PHASE: phase})
            answer = client.outbox.arrays()
            noise.append(
                [answer[name] - truth.arrays()[name] for name in ("rows", "gaps", "marks", "counts") if name in answer]
            )
            hidden = answer.keys() - {"rows", "gaps", "marks", "counts"}
            assert not any(answer[name].any() for name in hidden)
        for values in zip(*noise, strict=True):
            drawn = np.array(values)  # 150 draws of each count
            assert np.std(drawn) == pytest.approx(factor * deviation_of(BUDGET, COLUMNS, 1), rel=0.12)
            assert abs(np.corrcoef(drawn[:, :2].T)[0, 1]) < 0.4  # drawn anew for each count


def test_exact_answers_are_refused_with_a_budget() -> None:
    client = DescribeClient(cohort(0), NoModel(), TrainingSettings())  # type: ignore[arg-type]
    client.budget = BUDGET
    sums = BinQuestion(borders=QUESTION.borders, origins=np.zeros(2))
    for phase, question in [(QUANTILES, None), (BINS[2], QUESTION), (BINS[0], sums), (BINS[0], None)]:
        client.inbox = question
        with pytest.raises(BudgetError, match="a phase that the budget covers"):
            client.fit([np.zeros(0)], {ROUND: 0, PHASE: phase})


class Recorder(InProcessGrid):
    """A grid that records the requests."""

    sent: list[Message]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.sent = [*getattr(self, "sent", []), *messages]
        return super().push_messages(messages)


@pytest.mark.parametrize("with_folder", [False, True])
def test_a_site_answers_each_exchange_once(with_folder: bool, tmp_path: Path) -> None:
    """Answers to repeated questions have other noise, and their mean would have less."""
    nodes: list[dict[str, Any]] = []
    for site in range(2):
        table(200, site).to_csv(tmp_path / f"{site}.csv", index=False)
        nodes.append({"data-path": str(tmp_path / f"{site}.csv"), "largest-epsilon": 2.0, "least-cell": 5})
        nodes[-1] |= {"state-dir": str(tmp_path / f"state-{site}"), "largest-total-epsilon": 3.0} if with_folder else {}
    flat = flat_config(tmp_path / "run", {**CONFIG, "privacy.epsilon": 2.0})
    grid = Recorder(client_app, 2, flat, nodes)
    serve(grid, server_app, flat)
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text())["epsilon"] == 2.0
    asked = [message for message in grid.sent if message.metadata.message_type == "train"]
    assert len(asked) == 2 * (1 + len(NOISE_OF))
    with task_identity():
        again = [
            Message(RecordDict(dict(one.content)), one.metadata.dst_node_id, "train", group_id=one.metadata.group_id)
            for one in asked
        ]
        replies = list(grid.pull_messages(grid.push_messages(again)))
    assert len(replies) == len(asked)
    for reply in replies:
        assert reply.has_error()
        assert "privacy.epsilon: start a new run" in str(reply.error.reason)


@pytest.mark.parametrize("secure", [False, True])
def test_figures_are_near_those_of_the_pooled_rows(secure: bool, tmp_path: Path) -> None:
    frames = [table(4000, 0), table(3000, 1), table(2500, 2)]
    keys = {"privacy.epsilon": 8.0, "privacy.delta": 1e-5, "privacy.secure-sum": secure}
    exact, noisy = describe(tmp_path, frames), describe(tmp_path, frames, keys, name="noisy")
    deviation = noisy["noise"]["deviation"]
    # 3 numbers and 2 text columns; in a secure sum of 3 sites, each adds a third of the variance (at least 1 row)
    one = float(get_sigma_gaussian(8.0, 1e-5)) * (1 + 2 + 3 * 1.25) ** 0.5
    assert deviation == pytest.approx(3**0.5 * max(one / 3**0.5 if secure else one, 1.0))
    assert not noisy["sites"]
    for name in ("rows", "positives", "negatives"):
        assert abs(noisy[name] - exact[name]) <= 8 * deviation
    for name in ("age", "bmi", "kids"):
        mine, true = (column(one, name)["all"] for one in (noisy, exact))
        assert abs(mine["missing"] - true["missing"]) <= 8 * deviation
        for key in ("mean", "q25", "q50", "q75"):
            assert abs(mine[key] - true[key]) < 0.25 * true["deviation"]
    for name in ("sex", "ward"):
        for mine, true in zip(*(column(one, name)["all"]["levels"] for one in (noisy, exact)), strict=True):
            assert abs(mine["count"] - true["count"]) <= 8 * deviation
    assert column(noisy, "age")["information_value"] == pytest.approx(
        column(exact, "age")["information_value"], abs=0.2
    )


def test_figures_with_much_noise_are_left_out(tmp_path: Path) -> None:
    found = describe(tmp_path, [table(150, 0), table(4, 1)], {"privacy.epsilon": 0.5})
    for name in ("age", "bmi", "kids"):
        assert [column(found, name)["all"][key] for key in ("mean", "deviation", "q50")] == [None] * 3
        assert column(found, name)["information_value"] is None
    assert "Noise: the standard deviation of each count" in (tmp_path / "run" / "describe.txt").read_text()


@given(st.lists(st.integers(-50, 200), min_size=1, max_size=12), st.integers(0, 500))
def test_fitted_counts_are_the_nearest_counts(noisy: list[int], total: int) -> None:
    """Optimality: all counts above 0 are lowered by the same shift, and counts of 0 would be lowered below 0."""
    fitted = fit_counts(np.array(noisy), total)
    assert fitted.sum() == total
    assert (fitted >= 0).all()
    if total:
        shift = np.max(np.array(noisy) - fitted)
        lowered = np.maximum(np.array(noisy) - shift, 0)
        assert np.abs(fitted - lowered).max() <= 2  # rounding
