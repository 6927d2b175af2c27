"""The ServerApp: reads the run config, opens the run directory, trains, and never ends on a line that lies."""

from __future__ import annotations

from logging import ERROR, INFO

from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

from apps.artifacts import RunDirectory
from apps.config import ConfigError, parse_run_config
from apps.evaluation import shown
from apps.training import Training
from payloads.record import PayloadError
from problems.data import DataError
from problems.models import ModelError
from strategies.roster import StrategyError

# What a user can put right; each message is complete without a traceback.
EXPECTED = (ConfigError, DataError, ModelError, PayloadError, StrategyError, ValueError, OSError)

app = ServerApp()


class RunFailedError(RuntimeError):
    """The run ended without a result; the message is the reason, the log's last word, whatever failed."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one federation from start to result.json."""
    try:
        config = parse_run_config(context.run_config)
        directory = RunDirectory.open(config)
    except EXPECTED as error:
        raise _failed(error) from None
    try:
        training = Training(config, grid, directory)
        result = training.run()
    except EXPECTED as error:
        directory.fail(str(error))
        raise _failed(error) from None
    except BaseException as error:
        directory.fail(f"{type(error).__name__}: {error}")
        raise
    log(
        INFO,
        "finished: %s  in %.1f s; see %s",
        shown(result["metrics"], training.strategy.headline),
        result["wall_seconds"],
        directory.path / "result.json",
    )


def _failed(error: BaseException) -> RunFailedError:
    log(ERROR, "run failed: %s", error)
    return RunFailedError(str(error))
