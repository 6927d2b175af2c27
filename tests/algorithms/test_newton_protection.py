"""A server that sees a site's sums rebuilds rows of small cells; a site with its own file refuses to send such sums."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from apps.config import Scalar
from apps.server_app import RunFailedError
from methods.method import Task
from methods.newton import limit
from methods.newton_client import Design, answer_variance, count_effective, finish, sum_rows
from methods.newton_records import NewtonQuestion, NewtonSettings, NewtonSums, NewtonVariance, whole
from methods.newton_table import standard_errors
from payloads.settings import TrainingSettings
from problems.errors import InputError
from problems.models import FlatModel, build_model
from problems.site import Site
from tests.algorithms.test_newton import run, tables
from tests.battery.federation import federate
from tests.refusals import refuses

ROWS, COLUMNS = 60, 3


def make_task(site: Site, loss: str = "cross-entropy", summed: int = 1) -> Task[NewtonSettings, Design]:
    """Return the task of a site in round 2."""
    training, settings = TrainingSettings(dtype="float64"), NewtonSettings()
    model = FlatModel(build_model("linear", (COLUMNS,), 0), dtype=torch.float64)
    return Task(2, training, settings, site, Design(model, site, loss, training, settings), loss, summed)


def make_site(rare: int, rows: int = ROWS, least: int = 5) -> Site:
    """Return a site with two numbers and a category that ``rare`` rows have."""
    rng = np.random.default_rng(1)
    category = np.arange(rows) < rare
    features = np.column_stack([rng.normal(size=(rows, 2)), category])
    site = Site.from_arrays(0, features, rng.permutation(np.arange(rows) % 2), dtype=torch.float64)
    return replace(site, least_cell=least)


def read(record: NewtonSums) -> np.ndarray:
    """Return the information in a record."""
    assert not record.failed[0]
    return whole(NewtonSums.total([record])["information"], COLUMNS + 1)


def test_the_information_of_a_rare_category_is_the_row_of_its_patient() -> None:
    """The attack: the owner of this site allows it."""
    site = make_site(rare=1, least=1)
    _, record, _ = finish_at(site, np.zeros(COLUMNS + 1))
    information = read(record)
    rebuilt = information[2, :2] / information[2, 2]
    np.testing.assert_allclose(rebuilt, site.features[0, :2].numpy(), rtol=1e-12)


def finish_at(site: Site, x: np.ndarray, summed: int = 1) -> tuple[torch.Tensor, NewtonSums, None]:
    task = make_task(site, summed=summed)
    carry = type("Carry", (), {"x": torch.from_numpy(x)})()
    return finish(carry, task)


@pytest.mark.parametrize("rare", [1, 4, ROWS - 1])
def test_a_rare_category_is_not_sent(rare: int) -> None:
    with refuses(InputError, "features: got fewer than 5 rows that differ from the others in column 2"):
        finish_at(make_site(rare), np.zeros(COLUMNS + 1))
    finish_at(make_site(rare), np.zeros(COLUMNS + 1), summed=3)  # the server sees only a sum over three sites
    finish_at(make_site(5), np.zeros(COLUMNS + 1))


def test_few_rows_are_not_sent() -> None:
    with refuses(InputError, "training rows: got 9, allowed: at least 10"):
        finish_at(make_site(5, rows=9), np.zeros(COLUMNS + 1), summed=3)


def test_coefficients_that_single_out_a_row_are_refused() -> None:
    """With large coefficients nearly all weight of a Poisson model is on one row, which the information then shows."""
    site = make_site(rare=10)
    x = torch.tensor([20.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    allowed = read(sum_rows(x, make_task(replace(site, least_cell=1), "poisson")))
    row = site.features[site.features[:, 0].argmax()].numpy()
    np.testing.assert_allclose(allowed[3, :2] / allowed[3, 3], row[:2], rtol=1e-2)  # the attack
    with refuses(InputError, "coefficients: got coefficients under which a few rows have nearly all weight"):
        sum_rows(x, make_task(site, "poisson"))
    sum_rows(torch.zeros(COLUMNS + 1, dtype=torch.float64), make_task(site, "poisson"))


def test_dominated_squares_are_withheld() -> None:
    site = make_site(rare=10)
    site.labels[7] = 1e4
    point = np.zeros(COLUMNS + 1)
    question = NewtonQuestion(point=point, free=np.ones(COLUMNS + 1, dtype=bool), between=point)
    record = answer_variance(torch.from_numpy(point), question, make_task(site, "squared"))
    sums = NewtonVariance.total([record])
    assert not sums["squares"].any()
    assert sums["counts"].tolist() == [ROWS, 1, 1]


def test_a_refusal_ends_the_run_and_its_reason_stays_at_the_site(tmp_path: Path) -> None:
    frames = tables(tmp_path)
    frames[1].loc[3:, "smoker"] = "now"
    frames[1].to_csv(tmp_path / "1.csv", index=False)
    with pytest.raises(RunFailedError, match="column 'smoker=never', 'smoker=now'"):
        run(tmp_path, "told", frames)
    with pytest.raises(RunFailedError, match="features: this site's log has the reason"):
        run(tmp_path, "withheld", frames, node={"verbose-errors": False})


def test_records_have_the_lengths_that_the_server_expects() -> None:
    _, record, _ = finish_at(make_site(5), np.zeros(COLUMNS + 1))
    limits = limit(0, [np.zeros(COLUMNS + 1)], None)
    assert (len(record.score), len(record.information)) == (limits["s"], limits["i"])


def test_a_row_is_not_the_difference_of_squares_and_information() -> None:
    """Where the model gives every row 1/2, squared residuals are the weights; the few other rows remain."""
    site = make_site(rare=20)
    labels = site.labels.clone()
    labels[:20], labels[3] = 1, 0
    design_site = replace(site, labels=labels)
    question = NewtonQuestion(point=np.array([0.0, 0.0, 40.0, 0.0]), free=np.ones(4, bool), between=np.zeros(4))
    assert answer_variance(torch.zeros(4, dtype=torch.float64), question, make_task(design_site)).counts[2] == 1


def test_weights_that_underflow_are_no_protection_from_refusal() -> None:
    assert count_effective(torch.tensor([1e-170] + [1e-200] * 50, dtype=torch.float64)) == pytest.approx(1.0)
    assert count_effective(torch.zeros(9)) == 0


@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_a_rare_number_is_not_sent(loss: str) -> None:
    site = make_site(rare=0)
    labels = torch.zeros(ROWS, dtype=torch.float64)
    labels[7] = 7
    task = make_task(replace(site, labels=labels, numeric=True), loss)
    with refuses(InputError, "labels: got fewer than 5 rows with another label"):
        finish(type("Carry", (), {"x": torch.zeros(4, dtype=torch.float64)})(), task)


def test_sums_that_no_rows_can_have_are_named() -> None:
    to_raw, covariance = np.array([[2.0, 0.0], [-3.0, 1.0]]), np.array([[1.0, 0.5], [0.5, 4.0]])
    np.testing.assert_allclose(standard_errors(to_raw, covariance), [2.0, np.sqrt(9 - 3 + 4)])
    difference, ones = np.array([[1.0, -1.0], [0.0, 1.0]]), np.array([[1.0, 1.0], [1.0, 1.0 - 1e-12]])
    assert standard_errors(difference, ones)[0] == 0  # rounding
    with refuses(InputError, "coefficients: .*a variance below 0"):
        standard_errors(to_raw, -covariance)


def test_a_run_ends_with_that_error_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("methods.newton_table.standard_errors", lambda a, b: standard_errors(a, -b))
    config: dict[str, Scalar] = {"strategy": "newton", "dataset": "heart-disease", "partition": "natural"}
    with refuses(RunFailedError, "coefficients: .*a variance below 0"):
        federate(tmp_path / "run", {**config, "num-server-rounds": 25}, clients=4)
    assert "a variance below 0" in (tmp_path / "run" / "failure.json").read_text("utf-8")
