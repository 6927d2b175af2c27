"""Training of the references of a finished run: a model of all rows pooled, and a model of each site's rows.

If the run trains a linear model on cross-entropy, a reference is a logistic regression at its optimum. The penalty is
chosen by cross-validation on the reference's own training rows. If the run fits a Cox model, a reference is a Cox model
at its optimum, and ``newton.ridge`` of a site alone is chosen on held-out rows.

Otherwise a reference is a run with one client, which has all of the reference's rows. The loss, the model, the initial
weights and the batch sizes are the run's. A reference processes as many samples as all clients of the run together. For
a site alone this number is limited to 50 times the site's rows, but it is never less than the site processed in the
run. A site's penalty (``weight-decay``) is chosen on held-out rows. If the strategy does not have this key, the site's
candidates are the strategy itself, and plain SGD on the cross-entropy with each penalty.

All references are evaluated on the same rows as the run, with features scaled as in the run. If the run selects its
round on validation rows, the references select theirs on validation rows too. References use neither secure sums nor
noise for privacy.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from apps.config import RunConfig, Scalar, parse_run_config
from apps.evaluation.metric_names import LOWER, better
from apps.evaluation.models import ModelEvaluator
from apps.server_app import EXPECTED, RunFailedError
from apps.sites import resources
from clients.base import MethodClient
from problems.data import Samples
from problems.data.doubts import silence
from problems.errors import join_first
from problems.finding_metrics import finding_metrics
from problems.intervals import AUC
from problems.metrics import binary_metrics
from problems.objectives.classification import CROSS_ENTROPY
from problems.objectives.hazard import COX
from simulations.arguments import add_directory
from simulations.baselines.comparison import FEDERATED, Result
from simulations.baselines.configs import fit_batches, minimise_cross_entropy, reference_config, samples_per_round
from simulations.baselines.measuring import compare_scores, measure_times, score_rows
from simulations.baselines.rows import HELD_OUT, Gathered, Rows, fold_seed, has_outcomes
from simulations.engines.launch import run_federation, run_reference
from simulations.references.penalised import FOLDS, fit_penalised
from simulations.results.output import log_off
from simulations.results.records import RunRecord, read_run

LOGISTIC_REGRESSION = "logistic-regression"  # the name of this reference in result.json
DECAYS = (0.0, 1e-3, 1e-2, 1e-1)  # the penalties to try for a site alone
RIDGES = (0.0, 1.0, 10.0, 100.0)  # the values of newton.ridge to try for a site alone
MAX_PASSES = 50  # the limit of the samples that a site alone processes, in multiples of its rows
LINEAR = {"linear": True, "linear-no-intercept": False}  # by model, whether it has an intercept

_OPTIMUM = (
    "references: logistic regressions at their optimum, so no round is selected; each penalty is chosen by "
    f"cross-validation ({FOLDS} folds) on the reference's own training rows; if the run is behind the references, it "
    "may need more rounds"
)
_TRAINED = (
    "references: trained like the run, on as many samples as all clients of the run together; a site alone on at most "
    "{passes} times its rows, or on its own share of the run's samples if this share is larger"
)
_COX = (
    "references: Cox models at their optimum, without strata; the ridge of a site alone is chosen on a fifth of its "
    "training rows, and raised until all its training rows determine a model"
)
_PENALTY = "penalty: the reference of all rows has the run's penalty; the penalty of a site alone is chosen on {held}"
_SELECTED = "selection: the best round by {metric} on validation rows, for the run and the references"
_PATIENCE = "; each training ends after {patience} evaluations without an improvement"
_LAST = "selection: the last round, for the run and the references"


@dataclass(frozen=True)
class Trainer:
    """The trainer of a run's references.

    Attributes:
        config: The run's config.
        gathered: The rows of all references.
        folder: The folder for the references' run directories.
        metric: The run's main metric.
        tested: Whether the run has validation rows, and measures its final metrics on test rows.
        per_round: The average number of samples that all clients of the run together process in a round.
        scores: The run's scores of the test rows. None: the run's model has no scores.
    """

    config: RunConfig
    gathered: Gathered
    folder: Path
    metric: str
    tested: bool
    per_round: int
    scores: NDArray[np.float64] | None

    @classmethod
    def of(cls, config: RunConfig, run: RunRecord, gathered: Gathered, folder: Path) -> Trainer:
        """Return the trainer of a finished run.

        Args:
            config: The run's config.
            run: The run.
            gathered: The rows of all references.
            folder: The folder for the references' run directories.
        """
        answered = [line["clients_answered"] for line in run.lines if line["round"]]
        share = float(np.mean(answered)) / len(gathered.alone) if answered else 1.0
        per_round = share * sum(samples_per_round(config, rows) for rows in gathered.alone)
        scores = score_rows(run, gathered.pooled.test)
        tested = "test_metrics" in run.result
        return cls(config, gathered, folder, next(iter(run.metrics)), tested, round(per_round), scores)

    @property
    def solved(self) -> bool:
        """Whether the references are logistic regressions at their optimum."""
        linear = self.config.run.model in LINEAR
        plain = self.config.algorithm.table != "composite" and not self.config.data.findings
        return linear and self.config.training.loss == CROSS_ENTROPY and plain

    @property
    def is_cox(self) -> bool:
        """Whether the references are Cox models at their optimum."""
        return self.config.training.loss == COX

    @property
    def select_by(self) -> str:
        """The metric that selects the run's round, or ""."""
        return self.config.evaluation.select_by

    def notes(self) -> list[str]:
        """Sentences about the references' samples, penalties and selection."""
        if self.solved:
            return [_OPTIMUM]
        if self.is_cox:
            return [_COX]
        held = "a fifth of its training rows; the site then trains on all its training rows"
        if self.select_by:
            held = (
                "its validation rows; a site without validation rows chooses its penalty and its round on a fifth of "
                "its training rows, and then trains on all of them"
            )
        selected = _SELECTED.format(metric=self.select_by) if self.select_by else _LAST
        if self.config.evaluation.patience:
            selected += _PATIENCE.format(patience=self.config.evaluation.patience)
        penalty = [_PENALTY.format(held=held)] if len(self._candidates({})) > 1 else []
        return [_TRAINED.format(passes=MAX_PASSES), *penalty, selected]

    def train(self, name: str, folder: str, rows: Rows, site: int | None) -> Result:
        """Train a reference.

        Args:
            name: The reference's name.
            folder: The name of the reference's run directory.
            rows: The reference's rows.
            site: The site's number. None: the reference has the rows of all sites.

        Returns:
            The result. If the reference cannot be trained, the result has no metrics, but a reason.
        """
        negatives, positives = rows.counts
        if self.config.data.has_times and not positives:
            return Result(name, len(rows.train), 0, {}, f"no event in {len(rows.train):,} rows")
        if (findings := rows.train.findings) is not None and not has_outcomes(rows.train):
            lacking = [name for name, counts in zip(findings.names, findings.counts, strict=True) if not counts.all()]
            reason = f"one value only of {join_first(lacking, 8)}"
            return Result(name, len(rows.train), rows.positives, {}, reason)
        if not (negatives and positives) and not self.config.data.has_times:
            reason = f"one class only, {positives:,} positives and {negatives:,} negatives"
            return Result(name, len(rows.train), positives, {}, reason)
        try:
            with log_off(True), silence():
                if self.solved:
                    return self._solve(name, self.folder / folder, rows, site)
                return self._choose(name, self.folder / folder, rows, site)
        except (*EXPECTED, RunFailedError) as error:
            return Result(name, len(rows.train), rows.positives, {}, str(error))
        finally:
            shutil.rmtree(self.folder / "candidates", ignore_errors=True)

    def describe(self, name: str, rows: Rows, run: RunRecord, samples: int | None, every: int = 1) -> Result:
        """Return the table's row about the federated run or a reference.

        Args:
            name: The name in the table.
            rows: The rows of the run or reference.
            run: The finished run or reference.
            samples: The number of samples that the training processed. None: a solver found the optimum.
            every: The number of the reference's rounds that correspond to a round of the federated run.
        """
        last, metrics = run.selected or run.facts["rounds"], run.metrics
        if name == FEDERATED and self.scores is not None:
            # sites with their own files count scores in bins; the references are measured on the rows themselves
            metrics = metrics | self._measure(run, rows.test)
        curve = {last: metrics[self.metric]} if self.tested else run.curve(self.metric)
        if samples is None:
            curve = dict.fromkeys((0, self.config.training.num_server_rounds), metrics[self.metric])
        difference = None
        if name != FEDERATED and self.scores is not None and (scores := score_rows(run, rows.test)) is not None:
            difference = compare_scores(rows.test, self.scores, scores)
        curve = {math.ceil(server_round / every): value for server_round, value in curve.items()}
        penalty = float(run.config.get("newton.ridge" if self.is_cox else "weight-decay", 0.0))
        return Result(
            name,
            len(rows.train),
            rows.positives,
            metrics,
            curve=curve,
            samples=samples,
            penalty=penalty,
            difference=difference,
        )

    def _measure(self, run: RunRecord, test: Samples) -> dict[str, float]:
        """Return the metrics of the federated run's scores of the rows that evaluate the references."""
        if test.findings is not None and self.scores is not None:
            return finding_metrics(test.findings, self.scores)
        if test.periods is not None and self.gathered.columns is not None:
            return measure_times(run, test, self.gathered.columns)
        return binary_metrics(test.labels, self.scores) if AUC in run.metrics and self.scores is not None else {}

    def _solve(self, name: str, folder: Path, rows: Rows, site: int | None) -> Result:
        """Fit a logistic regression, and write its run directory."""
        config, train = self.config, rows.train
        flat = reference_config(config, folder) | {"num-server-rounds": 1, "evaluate-every": 1}
        seed = fold_seed(config.training.seed, len(self.gathered.alone) if site is None else site)
        features = np.asarray(train.features).reshape(len(train), -1)
        fitted = fit_penalised(features, train.labels, intercept=LINEAR[config.run.model], seed=seed)
        flat = minimise_cross_entropy(flat) | {"weight-decay": fitted.penalty}

        def finish(parsed: RunConfig) -> tuple[object, ...]:
            evaluator = ModelEvaluator(parsed, resources.new_model(parsed, train.shape), rows.test)
            start = evaluator.start()
            vector = np.append(fitted.weights, fitted.bias)[: len(start[0])].astype(start[0].dtype)
            history = [evaluator(start), evaluator([vector])]
            return history, evaluator.name_arrays([vector]), self.gathered.columns, self.gathered.sample_format

        run_reference(LOGISTIC_REGRESSION, add_directory(flat, folder), 1, finish)  # type: ignore[arg-type]
        trained = "logistic regression at its optimum"
        if not fitted.folds:
            trained += "; no penalty was chosen, since a class has only one row"
        return replace(self.describe(name, rows, read_run(folder), None), trained=trained)

    def _choose(self, name: str, folder: Path, rows: Rows, site: int | None) -> Result:
        """Train a reference with the run's strategy. For a site alone, first choose the best candidate's config."""
        base = reference_config(self.config, folder)
        candidates = [base] if site is None else self._candidates(base)
        own = rows.validation is not None
        best, run, trained = base, None, ""
        if len(candidates) > 1 or (self.select_by and not own):
            held = rows if own else rows.hold_out(self.config.training.seed, site or 0)
            if held is None:
                trained = ", without a choice of penalty and round, since a class has too few rows"
            elif self.is_cox:
                best = self._best_ridge(candidates, held)
            else:
                best, run = self._best(candidates, held)
        if self.is_cox:
            best = self._fit_cox(candidates[candidates.index(best) :], folder, rows)
        elif run is not None and self.select_by and own:
            run.path.rename(folder)
        else:
            # a round that was selected on held-out training rows becomes the last round of training on all rows
            self._train(best, folder, rows, run.selected if run is not None and self.select_by else None)
        chosen = read_run(folder)
        samples = None
        if not self.is_cox:
            samples = chosen.facts["rounds"] * samples_per_round(parse_run_config(best), rows)
        result = self.describe(name, rows, chosen, samples, self._factor(rows, site is not None))
        return replace(result, trained=f"strategy {best['strategy']}{trained}")

    def _candidates(self, base: dict[str, Scalar]) -> list[dict[str, Scalar]]:
        """Return the configs from which the config of a site alone is chosen."""
        if self.is_cox:
            ridge = self.config.family.ridge  # type: ignore[attr-defined]
            return [{**base, "newton.ridge": value} for value in sorted({*RIDGES, ridge})]
        client = self.config.algorithm.client
        adjusts = issubclass(client, MethodClient) and client.method.adjusts
        if not adjusts and (resources.is_problem(self.config) or self.select_by.startswith(LOWER)):
            return [base]  # losses other than the run's loss have no comparable metric
        plain = base if adjusts else minimise_cross_entropy(base)
        decays = sorted({*DECAYS, self.config.training.weight_decay} if adjusts else DECAYS)
        return [*([] if adjusts else [base]), *({**plain, "weight-decay": decay} for decay in decays)]

    def _best_ridge(self, candidates: Sequence[dict[str, Scalar]], held: Rows) -> dict[str, Scalar]:
        """Return the best candidate. If the rows that are left do not determine any model: the first candidate."""
        try:
            return self._best(candidates, held)[0]
        except RunFailedError:
            return candidates[0]

    def _fit_cox(self, candidates: Sequence[dict[str, Scalar]], folder: Path, rows: Rows) -> dict[str, Scalar]:
        """Fit the first candidate that the rows determine, and return it."""
        for flat in candidates[:-1]:
            try:
                self._train(flat, folder, rows)
            except (*EXPECTED, RunFailedError):
                shutil.rmtree(folder, ignore_errors=True)
            else:
                return flat
        self._train(candidates[-1], folder, rows)
        return candidates[-1]

    def _best(self, candidates: Sequence[dict[str, Scalar]], rows: Rows) -> tuple[dict[str, Scalar], RunRecord]:
        """Train each candidate. Return the config and the run of the best candidate on the validation rows."""
        assert rows.validation is not None
        metric, best = self.select_by or self.metric, None
        for number, flat in enumerate(candidates):
            folder = self.folder / "candidates" / str(number)
            part = rows if self.select_by else replace(rows, test=rows.validation, validation=None)
            try:
                self._train(flat, folder, part)
            except (*EXPECTED, RunFailedError):
                continue  # training diverges with this penalty
            run = read_run(folder)
            value = run.result["selected"]["value"] if self.select_by else run.metrics[metric]
            if best is None or (value != best[0] and better(metric)(value, best[0]) == value):
                best = value, flat, run
        if best is None:
            raise RunFailedError("training failed with each candidate penalty; if it diverged, lower learning-rate")
        return best[1], best[2]

    def _train(self, flat: Mapping[str, Scalar], folder: Path, rows: Rows, rounds: int | None = None) -> None:
        """Train a reference, as a run with one client.

        Args:
            flat: The reference's config, without its rounds and batch sizes.
            folder: The reference's run directory.
            rows: The client's rows.
            rounds: The number of rounds. None: the rounds in which the client processes as many samples as the run. A
                round is then selected, if the run selects a round and there are validation rows.
        """
        training, evaluation = self.config.training, self.config.evaluation
        select = rounds is None and rows.validation is not None and bool(self.select_by)
        factor = 1 if self.is_cox else self._factor(rows, rows.train is not self.gathered.pooled.train)
        flat = {
            **flat,
            "data-dir": str(folder.resolve()),
            "num-server-rounds": training.num_server_rounds * factor if rounds is None else max(rounds, 1),
            "evaluate-every": training.evaluate_every * factor,
            "lr-decay-every": training.lr_decay_every * factor,
            "lr-warmup": training.lr_warmup * factor,
        }
        if select:
            flat |= {"select-by": self.select_by, "patience": evaluation.patience, "validation-fraction": HELD_OUT}
        flat = add_directory(fit_batches(flat, rows), folder)
        parsed = parse_run_config(flat)
        resources.adopt(parsed.data, 1, self.gathered.data(rows if select else replace(rows, validation=None), parsed))
        try:
            run_federation(1, flat)
        finally:
            resources.disown()

    def _factor(self, rows: Rows, alone: bool) -> int:
        """Return the number of a reference's rounds that correspond to a round of the run."""
        own = samples_per_round(self.config, rows)
        factor = max(1, math.ceil(self.per_round / own - 1e-9))
        if alone:
            enough = MAX_PASSES * len(rows.train) / (own * self.config.training.num_server_rounds)
            factor = min(factor, max(1, math.ceil(enough)))
        return factor
