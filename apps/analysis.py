"""The run of a description of columns: table one over all sites, before any model is trained."""

import time
from logging import INFO, WARNING
from typing import Any

from flwr.common import log

from apps.evaluation.no_model import NoEvaluator
from apps.run_config.settings import ConfigError
from apps.run_directory import table_one
from apps.training import Training
from methods.column_facts import describe
from payloads.wire import model_record
from strategies.describe import Describe


class Description(Training):
    """A run that describes columns."""

    strategy: Describe

    def run(self) -> dict[str, Any]:
        """Make all exchanges, write table one, and return the content of result.json."""
        config, begun = self.config, time.perf_counter()
        if config.run.resume:
            allowed = "false, since a description has no rounds"
            raise ConfigError("resume", got="true", allowed=allowed, hint="start a new run")
        roster = self.strategy.join(self.grid)
        self.history.watch.names = roster.site_names
        log(INFO, "%s on %s: %d sites, engine %s", config.run.strategy, config.data.dataset, len(roster), self.engine)
        if config.warning:
            log(WARNING, "%s", config.warning)
        self.strategy.prepare(model_record(NoEvaluator().start()), self.grid)
        report = self.strategy.report
        self.history.write(0, report, {}, begun, report.exchange_seconds)
        assert self.strategy.pool is not None
        assert self.strategy.schema is not None
        assert self.strategy.schema.preprocessing is not None
        table = {
            "dataset": config.data.dataset,
            "outcome": self.strategy.schema.preprocessing.label_column,
            "positive_label": config.data.positive_label,
            "secure_sum": config.privacy.secure_sum,
            "noise": self._noise(),
            **describe(self.strategy.pool, [roster.label(site) for site in range(len(roster))]),
        }
        table_one.write(self.directory.path, table)
        for column, text in table_one.warnings(table):
            log(WARNING, "column %r: %s", column, text)
        result = self.history.result(config, self.engine, roster, 0, {"rows": table["rows"]}, type(report)())
        self.directory.finish(result, pictures=False)
        return result

    def _noise(self) -> dict[str, float] | None:
        """Return the budget, and the standard deviation of a count over all sites."""
        privacy, deviation = self.config.privacy, self.strategy.deviation
        return {"epsilon": privacy.epsilon, "delta": privacy.delta, "deviation": deviation} if deviation else None
