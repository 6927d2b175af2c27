"""Tests of `reproduce --tune`: values chosen from a grid on a validation split, and a reproduction with these
values."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from apps.config import ConfigError
from simulations.experiments.choosing import Choosing
from simulations.experiments.expansion import expand
from simulations.experiments.experiment import PACKAGED, find_experiment, read_experiment
from simulations.experiments.tuned_values import find_tuned, read_tuned, shipped_path
from tests.programs import Line
from tests.refusals import refuses
from tests.simulations.fabricated import Runs, adding, table, write

TUNE = """
[tune]
seeds = 2
grid.learning-rate = [0.01, 0.1, 1.0]
without = ["Nothing is tuned."]
"""


def peak(config: Mapping[str, Any]) -> tuple[float, ...]:
    """Return AUCs by which FedX is best at 0.1, Local SGD at 1, more so with K = 2; seeds differ."""
    best = 0.1 if config["strategy"] == "fedx1" else 1.0
    return 0.5, (0.8 if config["learning-rate"] == best else 0.6) + 0.01 * config["local-steps"] + 0.02 * (
        config["seed"] % 1000
    )


def chosen(out: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return (method, data set, K if it matters) -> the values."""
    found = read_tuned(out / "tuned.toml").chosen
    return {tuple(one.at[key] for key in ("method", "dataset", "K") if key in one.at): one.values for one in found}


def test_what_is_best_on_the_validation_rows_is_taken(command: Line, runs: Runs, tmp_path: Path) -> None:
    out = tmp_path / "out"
    runs.aucs = peak
    path = write(tmp_path, adding(TUNE), ('curve = "{method} {K}"', 'curve = "{method} {K} {learning-rate}"'))
    code, _, err = command("reproduce", path, "--tune", "--out", out)
    assert code == 0
    assert len(err.splitlines()) == 24 + 8
    assert err.startswith("1/24  finished  FedX  digits  K = 1  learning-rate = 0.01  seed 1000  auc 0.6100  9.0 s\n")
    assert chosen(out) == {
        ("FedX", "digits", 1): {"learning-rate": 0.1},
        ("FedX", "digits", 2): {"learning-rate": 0.1},
        ("Local SGD", "digits", 1): {"learning-rate": 1.0},
        ("Local SGD", "digits", 2): {"learning-rate": 1.0},
    }
    point = read_tuned(out / "tuned.toml").chosen[0].score
    assert (point.mean, point.std, point.finished) == (pytest.approx(0.82), pytest.approx(0.02 / 2**0.5), 2)

    for folder in (out / "tune").iterdir():
        config = tomllib.loads((folder / "config.toml").read_text())
        assert (config["validation-fraction"], config["evaluate-every"]) == (0.2, 2)
    for folder in (out / "runs").iterdir():
        config = tomllib.loads((folder / "config.toml").read_text())
        assert (config["validation-fraction"], config["evaluate-every"]) == (0.0, 1)
        assert config["learning-rate"] == (0.1 if config["strategy"] == "fedx1" else 1.0)
    means = [round(float(row["mean"]), 6) for row in table(out) if row["metric"] == "auc"]
    assert means == [0.82, 0.83, 0.82, 0.83]

    page = (out / "report.html").read_text()
    assert "Nothing is tuned." not in page
    told = (out / "table.md").read_text()
    assert "Chosen by auc (maximum) after the last round, the mean of 2 seeds, on a validation split of 20 %" in told
    row = "| FedX, digits, K = 1 | learning-rate = 0.1 | learning-rate in {0.01, 0.1, 1} | 0.8200 ± 0.0141 |"
    assert row in told.splitlines()
    assert "| Local SGD, digits, K = 1 | learning-rate = 1 (an end of the range) |" in told
    assert "<td>learning-rate in {0.01, 0.1, 1}</td>" in page
    assert "No test row was used" in page


@pytest.mark.parametrize(
    ("said", "mode", "rate"),
    [
        ('metric = "loss"', "min", 0.01),  # the first of equal values: the fabricated loss is half the AUC
        ('metric = "loss"\nmode = "max"', "max", 0.1),
    ],
)
def test_less_loss_is_better(command: Line, runs: Runs, tmp_path: Path, said: str, mode: str, rate: float) -> None:
    runs.aucs = peak
    path = write(tmp_path, adding(TUNE.replace("seeds = 2", f"seeds = 2\n{said}")))
    assert command("reproduce", path, "--tune", "--out", tmp_path / "out", "--quiet")[0] == 0
    assert read_tuned(tmp_path / "out" / "tuned.toml").mode == mode
    assert chosen(tmp_path / "out")["FedX", "digits", 1] == {"learning-rate": rate}


def test_an_interrupted_choice_goes_on_and_nothing_runs_twice(command: Line, runs: Runs, tmp_path: Path) -> None:
    out, path = tmp_path / "out", write(tmp_path, adding(TUNE))
    runs.aucs, runs.interrupt_after = peak, 10
    code, _, err = command("reproduce", path, "--tune", "--out", out)
    assert code == 130
    assert err.splitlines()[-1] == "interrupted: 10 of 24 runs have finished; the same command continues"
    assert not (out / "tuned.toml").exists()
    runs.interrupt_after = 1000
    assert command("reproduce", path, "--tune", "--out", out)[0] == 0
    assert len(runs.names) == 24 + 8
    before = (out / "tuned.toml").read_bytes()
    assert command("reproduce", path, "--tune", "--out", out)[0] == 0
    assert len(runs.names) == 24 + 8
    assert (out / "tuned.toml").read_bytes() == before
    wider = path.read_text().replace("[0.01, 0.1, 1.0]", "[0.001, 0.01, 0.1, 1.0]")
    path.write_text(wider)
    assert command("reproduce", path, "--tune", "--out", out)[0] == 0
    assert len(runs.names) == 32 + 8  # only the new value's runs


def test_values_of_other_runs_stay(command: Line, runs: Runs, tmp_path: Path) -> None:
    out, path = tmp_path / "out", write(tmp_path, adding(TUNE))
    runs.aucs = peak
    assert command("reproduce", path, "--tune", "--out", out, "--only", "K=1")[0] == 0
    assert len(runs.names) == 12 + 4
    assert command("reproduce", path, "--tune", "--out", out, "--only", 'K=2 method="FedX"')[0] == 0
    assert list(chosen(out)) == [("FedX", "digits", 1), ("Local SGD", "digits", 1), ("FedX", "digits", 2)]
    assert command("reproduce", path, "--out", out, "--only", "K=1")[0] == 0
    assert len(runs.names) == 16 + 6 + 2
    assert command("reproduce", path, "--out", out)[0] == 0
    page = (out / "report.html").read_text()
    assert "Nothing is tuned." in page
    assert "No values were chosen for Local SGD  digits  K = 2." in page


def test_values_come_from_the_directory_or_from_beside_the_file(command: Line, runs: Runs, tmp_path: Path) -> None:
    out, path = tmp_path / "out", write(tmp_path, adding(TUNE))
    runs.aucs = peak
    assert command("reproduce", path, "--tune", "--out", out)[0] == 0
    assert command("reproduce", path, "--seeds", "3", "--out", out)[0] == 0
    assert {round(float(row["mean"]), 6) for row in table(out) if row["metric"] == "auc"} == {0.83, 0.84}

    rate = {"FedX": 0.1, "Local SGD": 1.0}
    tuned = find_tuned(str(out / "experiment.toml"), "small", "quick", path)
    copy = expand(read_experiment(path), "quick", tuned=tuned)
    assert {line.method: line.config["learning-rate"] for line in copy.lines} == rate
    assert find_tuned(str(path), "small", "quick", tmp_path / "new") is None
    assert find_tuned(str(out / "experiment.toml"), "small", "smoke", tmp_path / "new") is None
    shipped_path(path, "quick").parent.mkdir()
    shipped_path(path, "quick").write_bytes((out / "tuned.toml").read_bytes())
    assert command("reproduce", path, "--out", tmp_path / "new")[0] == 0
    assert (tmp_path / "new" / "tuned.toml").read_bytes() == (out / "tuned.toml").read_bytes()
    shipped = read_tuned(out / "tuned.toml")  # the values chosen here come last, and take precedence
    some = shipped.chosen[0].model_copy(update={"values": {"learning-rate": 0.01}})
    (out / "tuned.toml").write_text(shipped.model_copy(update={"seeds": 1, "chosen": [some]}).toml())
    both = find_tuned(str(path), "small", "quick", out)
    assert both is not None
    assert both.chosen == [*(one.model_copy(update={"seeds": 2}) for one in shipped.chosen[1:]), some]
    assert {round(float(row["mean"]), 6) for row in table(tmp_path / "new") if row["metric"] == "auc"} == {0.82, 0.83}


def test_grids_of_methods_and_of_a_profile(tmp_path: Path) -> None:
    text = (
        TUNE
        + """
methods.FedX = { learning-rate = [0.1, 0.2], fedx.gamma = [0.5, 1.0] }
[tune.profiles.smoke]
seeds = 1
grid.learning-rate = [0.3]
methods."Local SGD" = {}
"""
    )
    experiment = read_experiment(write(tmp_path, adding(text)))
    quick = Choosing(expand(experiment, "quick"), tmp_path / "quick")
    grids = {search.line.method: [values for values, _ in search.points] for search in quick.searches}
    assert grids["FedX"] == [{"learning-rate": r, "fedx.gamma": g} for r in (0.1, 0.2) for g in (0.5, 1.0)]
    assert grids["Local SGD"] == [{"learning-rate": rate} for rate in (0.01, 0.1, 1.0)]
    smoke = Choosing(expand(experiment, "smoke"), tmp_path / "smoke")
    assert [(search.line.method, len(search.points)) for search in smoke.searches] == [("FedX", 1)]
    assert len(smoke.runs) == 1


def test_runs_may_have_more_seeds_than_others(command: Line, runs: Runs, tmp_path: Path) -> None:
    """A profile's own number of seeds applies to all its runs; ``methods`` may name methods that ``--only`` leaves
    out."""
    out, runs.aucs = tmp_path / "out", peak
    text = 'seeds-at = [{ at = { K = 2 }, seeds = 4 }, { at = { K = 2, method = "FedX" }, seeds = 3 }]\n'
    text = TUNE + text + 'methods."Local SGD" = { learning-rate = [1.0] }\n[tune.profiles.smoke]\nseeds = 1\n'
    path = write(tmp_path, adding(text))
    assert command("reproduce", path, "--tune", "--out", out, "--only", 'method="FedX"')[0] == 0
    assert command("reproduce", path, "--tune", "--out", out)[0] == 0
    found = read_tuned(out / "tuned.toml").chosen
    assert [(one.seeds, {point.finished for point in one.points}) for one in found] == [
        (None, {2}),
        (3, {3}),
        (None, {2}),
        (4, {4}),
    ]
    assert "round, the mean of 2 to 4 seeds, on a validation split" in (out / "table.md").read_text()
    smoke = Choosing(expand(read_experiment(path), "smoke"), tmp_path / "smoke")
    assert {run.seed for run in smoke.runs.values()} == {1000}


def test_some_runs_values_are_chosen_by_another_metric(command: Line, runs: Runs, tmp_path: Path) -> None:
    """With K = 2 by the loss, which is better if smaller: the fabricated loss is half the AUC."""
    out, runs.aucs = tmp_path / "out", peak
    text = TUNE + 'mode = "max"\nmetric-at = [{ at = { K = 2 }, metric = "loss" }]\n'
    code, _, err = command("reproduce", write(tmp_path, adding(text)), "--tune", "--out", out)
    assert code == 0
    assert chosen(out)["FedX", "digits", 1] == {"learning-rate": 0.1}
    assert chosen(out)["FedX", "digits", 2] == {"learning-rate": 0.01}
    assert [one.metric for one in read_tuned(out / "tuned.toml").chosen] == [None, "loss", None, "loss"]
    assert "K = 2  learning-rate = 0.01  seed 1000  loss 0.3100" in err
    told = (out / "table.md").read_text()
    assert "Chosen by auc (maximum), or by loss if the score names it, after the last round" in told
    assert "| learning-rate in {0.01, 0.1, 1} | loss 0.3150 ± 0.0071 |" in told  # the mean of 0.31 and 0.32


def test_a_value_that_fails_is_not_chosen(command: Line, runs: Runs, tmp_path: Path) -> None:
    """A value is also skipped if one seed fails or diverges, however good its other seeds are."""

    def aucs(config: Mapping[str, Any]) -> tuple[float, ...] | str:
        if config["learning-rate"] == 1.0:
            return "the model has\ndiverged"
        if config["learning-rate"] == 0.1 and config["seed"] == 1001 and config["validation-fraction"]:
            return 0.5, float("nan")
        return 0.5, 0.9 if config["learning-rate"] == 0.1 else 0.6

    runs.aucs = aucs
    out = tmp_path / "out"
    assert command("reproduce", write(tmp_path, adding(TUNE)), "--tune", "--out", out)[0] == 0
    assert {values["learning-rate"] for values in chosen(out).values()} == {0.01}
    points = read_tuned(out / "tuned.toml").chosen[0].points
    assert [point.finished for point in points] == [2, 1, 0]
    assert [point.reason for point in points] == ["", "auc is not finite", "the model has diverged"]
    runs.aucs = lambda config: "no luck"
    code, _, err = command("reproduce", write(tmp_path, adding(TUNE)), "--tune", "--out", tmp_path / "none")
    assert code == 1
    assert "no value for FedX  digits  K = 1 works: no luck" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"--tune: got experiment 'small', which has no \[tune\]"),
        ("[tune]\n", r"'small': tune: got no grid"),
        ("[tune]\ngrid.learning-rate = 0.1\n", r"tune.grid: learning-rate: got 0.1, allowed: a list"),
        ("[tune]\ngrid.learning-rate = [0.1, 0.1]\n", r"with a repeated value"),
        (TUNE + "methods.FedY = {}\n", r"tune.methods: got 'FedY', allowed: FedX, Local SGD"),
        (TUNE + "seeds-at = [{ at = { K = 7 }, seeds = 3 }]\n", r"tune.seeds-at\[0\].at: got K = 7, which no run has"),
        (TUNE + 'metric-at = [{ at = { K = 7 }, metric = "loss" }]\n', r"tune.metric-at\[0\].at: got K = 7, which no"),
        (TUNE + 'metric-at = [{ at = { K = 2 }, metric = "average_recall" }]\n', r"tune.metric-at\[0\].metric: got"),
        (TUNE + "at = { K = 7 }\n", r"tune.at: got K = 7, with which no search chooses values for FedX digits K = 1"),
        (TUNE + "validation-fraction = 1.0\n", r"tune.validation-fraction: got 1.0"),
        (TUNE + "validation-fraction = 0.0\n", r"validation-fraction: got 0.*allowed: a number above 0, since 'auc'"),
    ],
)
def test_a_wrong_grid(tmp_path: Path, text: str, message: str) -> None:
    with refuses(ConfigError, message):
        Choosing(expand(read_experiment(write(tmp_path, adding(text))), "quick"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            '= "small"',
            '= "other"',
            "got values for experiment 'other', profile 'quick', allowed: values for experiment 'small', profile",
        ),
        ("[chosen.at]", "[chosen.at]\nL = 3", "got values for L = 3, method = FedX.*which no run has"),
        (
            "seeds = 2",
            "seeds = 0",
            "tuned.toml: seeds: got 0, allowed: input should be greater .*; write the file again with --tune",
        ),
        ("seeds = 2", "seeds = ", "tuned.toml: got a file that cannot be read .*allowed: a file that --tune wrote"),
    ],
)
def test_a_wrong_tuned_toml(command: Line, runs: Runs, tmp_path: Path, before: str, after: str, message: str) -> None:
    out, path = tmp_path / "out", write(tmp_path, adding(TUNE))
    runs.aucs = peak
    assert command("reproduce", path, "--tune", "--out", out)[0] == 0
    text = (out / "tuned.toml").read_text()
    (out / "tuned.toml").write_text(text.replace(before, after, 1))
    with refuses(ConfigError, message):
        expand(read_experiment(path), "quick", tuned=find_tuned(str(path), "small", "quick", out))


SHIPPED = sorted((PACKAGED / "tuned").glob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_values_are_the_best_of_their_grid(path: Path, tmp_path: Path) -> None:
    name, profile = path.stem.rsplit(".", 1)
    tuned = read_tuned(path)
    assert (tuned.experiment, tuned.profile) == (name, profile)
    assert find_tuned(name, name, profile, tmp_path) == tuned
    choosing = Choosing(expand(find_experiment(name), profile, data_dir=Path("/data")), tmp_path / "out")
    assert (tuned.metric, tuned.mode, tuned.seeds) == (choosing.metric, choosing.mode, choosing.tune.seeds)
    assert [(one.at, one.grid) for one in tuned.chosen] == [(one.at, one.grid) for one in choosing.searches]
    best = min if tuned.mode == "min" else max
    for choice in tuned.chosen:
        seeds = choice.seeds or tuned.seeds
        means = [point.mean for point in choice.points if point.mean is not None and point.finished == seeds]
        assert choice.score.mean == best(means)
    assert expand(find_experiment(name), profile, data_dir=Path("/data"), tuned=tuned).runs


def test_keys_that_are_joined_take_each_value_together(command: Line, runs: Runs, tmp_path: Path) -> None:
    runs.aucs = lambda config: (0.5, 0.9 if config["fedx.gamma"] == config["fedx.beta"] == 0.5 else 0.6)
    grid = '[tune]\ngrid."fedx.gamma & fedx.beta" = [0.2, 0.5]\n'
    assert command("reproduce", write(tmp_path, adding(grid)), "--tune", "--out", tmp_path / "out")[0] == 0
    assert chosen(tmp_path / "out")["FedX", "digits", 1] == {"fedx.gamma": 0.5, "fedx.beta": 0.5}
    found = read_tuned(tmp_path / "out" / "tuned.toml").chosen[0]
    assert (len(found.points), found.ends) == (2, ["fedx.gamma", "fedx.beta"])
