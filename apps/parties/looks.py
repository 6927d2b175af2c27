"""The count of a party's looks: the number of values about each row that other parties could compute, over all runs.

Each look is one linear equation about the party's columns of a row: a sum over the parties that contains the row's
partial score (features times weights). A party with d columns is protected only below d looks, since d equations
determine the row's columns. The count is stored in the ``state-dir`` by the party's index, and does not depend on a
run's rows and peers: a dropped row, another id column or a new certificate does not start a new count. A block that
scores rows counts once, since scoring a row again reveals the same number.
"""

import hashlib
from logging import WARNING
from pathlib import Path

from flwr.app import Context
from flwr.common import log

from apps.run_config.algorithm import RunConfig
from apps.sites.ledger import check_folder, open_ledger
from apps.sites.settings import SiteConfig
from apps.sites.state_store import state_dir
from vertical.policy import PolicyError
from vertical.problem.blocks.base import SAGA, SVRG
from vertical.problem.objectives import Array
from vertical.segment.plan import SegmentPlan
from vertical.settings import VFB2Settings

MOST_LOOKS = "most-looks"
_LOOKS, _RUNS, _BLOCKS = "looks", "runs", "blocks"


class LookLedger:
    """The ledger of a party's looks.

    Args:
        folder: The party's ``state-dir``.
        party: The party's index.
        run: The run whose looks are counted.
        limit: The largest count that the owner allows. 0: any count.
    """

    def __init__(self, folder: Path, party: int, run: int, limit: int) -> None:
        self._folder, self._party, self._run, self._limit = folder, str(party), str(run), limit

    def check(self, planned: int) -> None:
        """Refuse a run that would exceed the owner's limit before its end.

        Args:
            planned: The looks of the whole run, including looks that are already counted.

        Raises:
            PolicyError: The run would exceed the limit.
            ConfigError: As for `open_ledger`.
        """
        if not self._limit:
            return
        with open_ledger(self._folder) as ledger:
            runs = ledger.get(_LOOKS, {}).get(self._party, {}).get(_RUNS, {})
            self._compare(sum(runs.values()), max(planned - runs.get(self._run, 0), 0))

    def spend(self, plan: SegmentPlan, columns: int, weights: Array | None) -> int:
        """Count the looks of a segment before any of its values is sent.

        Args:
            plan: The segment's plan.
            columns: The number of the party's columns. When the count reaches this number, a warning is logged.
            weights: The block that scores rows. None in training.

        Returns:
            The count after the segment, over all runs.

        Raises:
            PolicyError: The count would exceed the owner's limit.
            ConfigError: As for `open_ledger`.
        """
        block = "" if weights is None else hashlib.sha256(weights.tobytes()).hexdigest()
        with open_ledger(self._folder) as ledger:
            own = ledger.setdefault(_LOOKS, {}).setdefault(self._party, {_RUNS: {}, _BLOCKS: []})
            before: int = sum(own[_RUNS].values())
            looks = 0 if block in own[_BLOCKS] else looks_of(plan)
            self._compare(before, looks)
            began = self._run in own[_RUNS]
            own[_RUNS][self._run] = own[_RUNS].get(self._run, 0) + looks
            if block and looks:
                own[_BLOCKS].append(block)
        after = before + looks
        if after >= columns and not (began and before >= columns):
            words = (
                "party %s: over all runs the other parties could have computed %d numbers about each row, and %d such "
                "numbers determine the row's values in the party's %d columns; see docs/vertical.md and most-looks"
            )
            log(WARNING, words, self._party, after, columns, columns)
        return after

    def _compare(self, before: int, looks: int) -> None:
        if self._limit and before + looks > self._limit:
            got = f"{looks} further looks (numbers about each row that peers may learn) after {before} in all runs"
            hint = "lower num-server-rounds or vfb2.epochs, or ask the owner of the data"
            raise PolicyError(MOST_LOOKS, got=got, allowed=f"{self._limit} looks in all runs", hint=hint)


def looks_of(plan: SegmentPlan) -> int:
    """Return the largest number of values about each row that a segment (a round's exchange) can reveal to peers."""
    passes = plan.epochs if plan.algorithm == SVRG else int(plan.algorithm == SAGA and plan.start and plan.epochs > 0)
    return plan.width * (plan.epochs + passes + plan.evaluate + plan.score)


def planned_looks(config: RunConfig) -> int:
    """Return the largest number of values about each row that a run can reveal.

    0 for runs that resume or score rows, whose looks are only counted segment by segment.
    """
    vfb2, training = config.family, config.training
    assert isinstance(vfb2, VFB2Settings)
    if vfb2.score_run or config.run.resume:
        return 0
    rounds, strategy = training.num_server_rounds, config.run.strategy
    evaluations = rounds // training.evaluate_every + bool(rounds % training.evaluate_every) + bool(vfb2.embedding)
    epochs = rounds * vfb2.epochs * (2 if strategy.endswith(SVRG) else 1) + strategy.endswith(SAGA)
    return max(vfb2.embedding, 1) * (epochs + evaluations)


def open_looks(config: RunConfig, context: Context, party: int) -> LookLedger | None:
    """Return a party's ledger of looks, after a check of the planned looks of the run.

    None if the party has no own file, or no ``state-dir``.

    Args:
        config: The run config.
        context: The context of the party's node.
        party: The party's index.

    Raises:
        PolicyError: The run would exceed the limit.
        ConfigError: The party has a limit but no ``state-dir``; or as for `open_ledger`.
    """
    own, folder = SiteConfig.of(context.node_config), state_dir(context.node_config)
    if limit := own.vertical.most_looks:
        check_folder(context.node_config, MOST_LOOKS)
    if folder is None or not (own.data.data_path or own.vertical.score_path):
        return None
    ledger = LookLedger(folder, party, context.run_id, limit)
    ledger.check(planned_looks(config))
    return ledger
