"""Sets of evaluated rows, which the end of a run measures: the groups of a column, and rows with a permuted column."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from apps.evaluation.models import ModelEvaluator, ScoreEvaluator
from apps.run_config.algorithm import Evaluator, RunConfig
from apps.run_config.settings import ConfigError
from clients.set_counts import PERMUTATION, column_indices, permute
from payloads.held_out import (
    IMPORTANCE_COUNTS,
    OF_GROUPS,
    SUBGROUP_COUNTS,
    TEST_IMPORTANCE_COUNTS,
    TEST_SUBGROUP_COUNTS,
)
from payloads.record import FloatArray, PayloadError
from problems.binned_scores import codes
from problems.data.subgroups import check_subgroups
from problems.randomness import stream
from problems.tallies import Tally
from strategies.method import MethodStrategy
from strategies.set_counts import CountedSets, count_sets


def sets_of(config: RunConfig, phase: str, column: object) -> int:
    """Return the number of sets that a site counts in an exchange, from the run config.

    Args:
        config: The run config.
        phase: An exchange of `payloads.held_out.OF_SETS`.
        column: The index of the column in the message.

    Raises:
        PayloadError: The run config does not ask for these sets, so the server must not either.
    """
    if not isinstance(column, int) or column < 0:
        raise PayloadError(f"{phase}: got column {column!r}, expected the number of a column")
    if phase not in OF_GROUPS:
        if not config.evaluation.importance:
            raise PayloadError(f"{phase}: got a request in a run with importance=0, expected none")
        return config.evaluation.importance
    columns = check_subgroups(config.data)
    if column >= len(columns):
        raise PayloadError(f"{phase}: got column {column} of {len(columns)} in subgroups of the run config")
    return len(columns[column].names)


def column_names(evaluator: Evaluator) -> list[str]:
    """Return the names of the columns that can be permuted.

    Raises:
        ConfigError: The samples have no columns, such as images.
    """
    if evaluator.columns is not None:
        return list(evaluator.columns.by_column())
    shape = evaluator.sample_format.shape if evaluator.sample_format else ()
    if len(shape) != 1:
        allowed = f"0, since samples of shape {tuple(shape)} have no columns"
        raise ConfigError("importance", got="a number above 0", allowed=allowed, hint="remove importance")
    return [f"feature {index}" for index in range(shape[0])]


class EvaluatedSets(ABC):
    """The sets of the rows on which a run's final model is measured."""

    @abstractmethod
    def count_groups(self, column: int, groups: int) -> CountedSets:
        """Return the rows of each group of a column of ``subgroups``.

        Args:
            column: The index of the column.
            groups: The number of groups.
        """

    @abstractmethod
    def count_permuted(self, column: int, repeats: int) -> CountedSets:
        """Return all rows, in which the cells of a column are permuted among the rows, for each repeat.

        Args:
            column: The index of the column of the table.
            repeats: The number of repeats.
        """


class RowSets(EvaluatedSets):
    """Sets of rows of the server.

    Args:
        config: The run config.
        evaluator: The evaluator of these rows.
        arrays: The model.
    """

    def __init__(self, config: RunConfig, evaluator: ModelEvaluator, arrays: Sequence[FloatArray]) -> None:
        self.seed, self.evaluator = config.training.seed, evaluator
        self.labels, logits = evaluator.scores(arrays)
        self.logits: NDArray[np.float64] = logits.cpu().numpy()
        table = evaluator.columns
        self.columns = column_indices(() if table is None else tuple(table.by_column().values()), evaluator.features)

    def count_groups(self, column: int, groups: int) -> CountedSets:
        assert self.evaluator.subgroups is not None
        masks = [self.evaluator.subgroups[:, column] == group for group in range(groups)]
        return _exact([Tally.of_rows(self.labels[mask], self.logits[mask]) for mask in masks])

    def count_permuted(self, column: int, repeats: int) -> CountedSets:
        model, features, tallies = self.evaluator.model, self.evaluator.features, []
        for repeat in range(repeats):
            order = stream(self.seed, PERMUTATION, column, repeat, 0).permutation(len(self.labels))
            scores = model.predict(permute(features, self.columns[column], order))
            scores = scores if self.evaluator.offsets is None else scores + self.evaluator.offsets
            tallies.append(Tally.of_rows(self.labels, scores.cpu().numpy()))
        return _exact(tallies)


class SiteSets(EvaluatedSets):
    """Sets of the sites' held-out rows.

    Args:
        strategy: The run's strategy.
        server_round: The last round.
        arrays: The model.
        tally: The counted scores of all rows, whose bins the sets use.
        test: Whether the rows are test rows although the run has validation rows.
    """

    def __init__(
        self,
        strategy: MethodStrategy,
        server_round: int,
        arrays: Sequence[FloatArray],
        tally: Tally,
        *,
        test: bool,
    ) -> None:
        self.strategy, self.server_round, self.arrays, self.test = strategy, server_round, arrays, test
        self.edges = codes(tally.floors)[1:]

    def count_groups(self, column: int, groups: int) -> CountedSets:
        phase = TEST_SUBGROUP_COUNTS if self.test else SUBGROUP_COUNTS
        return count_sets(self.strategy, self.server_round, self.arrays, phase, column, self.edges, groups)

    def count_permuted(self, column: int, repeats: int) -> CountedSets:
        phase = TEST_IMPORTANCE_COUNTS if self.test else IMPORTANCE_COUNTS
        return count_sets(self.strategy, self.server_round, self.arrays, phase, column, self.edges, repeats)


def sets_of_run(
    config: RunConfig,
    strategy: object,
    evaluator: ScoreEvaluator,
    server_round: int,
    arrays: Sequence[FloatArray],
    tally: Tally,
) -> EvaluatedSets:
    """Return the sets of the rows that an evaluator measures.

    Args:
        config: The run config.
        strategy: The run's strategy.
        evaluator: The evaluator of the final model.
        server_round: The last round.
        arrays: The final model.
        tally: The counted scores of the rows.
    """
    if isinstance(evaluator, ModelEvaluator):
        return RowSets(config, evaluator, arrays)
    assert isinstance(strategy, MethodStrategy)
    return SiteSets(strategy, server_round, arrays, tally, test=config.evaluation.tests)


def _exact(tallies: list[Tally]) -> CountedSets:
    return CountedSets(tallies, [0] * len(tallies), [0.0] * len(tallies))
