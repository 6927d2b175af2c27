"""The ServerApp: it reads the run config, opens the run directory, trains, and logs the outcome as its last line."""

from logging import ERROR

from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

from apps.analysis import Description
from apps.config import parse_run_config
from apps.run_directory.artifacts import RunDirectory
from apps.training import FLOWER_SIMULATION, Training, engine_of
from payloads.flower_internals import add_exit_handler, drop_log_colors
from payloads.record import PayloadError
from problems.errors import InputError
from strategies.rounds.errors import StrategyError

# Errors that a user can fix; each message is complete without a traceback.
EXPECTED = (InputError, PayloadError, StrategyError, ValueError, OSError)

app = ServerApp()
drop_log_colors()


class RunFailedError(RuntimeError):
    """A run that ended without a result. The message is the reason, which is also the last line of the log."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run a federation and write result.json. If the run fails after its directory is open, write failure.json.

    Raises:
        RunFailedError: The run failed for a reason that a user can fix. Other exceptions pass through.
    """
    try:
        config = parse_run_config(context.run_config)
        directory = RunDirectory.open(config, engine_of(grid))
    except EXPECTED as error:
        raise _failure(error) from None
    try:
        kind = Training if config.algorithm.strategy.trains else Description
        training = kind(config, grid, directory)
        if training.engine == FLOWER_SIMULATION:  # `flwr stop` ends the process without raising in this thread
            add_exit_handler(lambda: None if directory.ended else _note_stop(training))
        result = training.run()
    except EXPECTED as error:
        directory.fail(str(error))
        raise _failure(error) from None
    except KeyboardInterrupt:
        reason = f"interrupted {training.progress}"
        directory.fail(reason)
        raise KeyboardInterrupt(reason) from None
    except Exception as error:
        directory.fail(f"{type(error).__name__}: {error}")
        raise
    except BaseException:  # `flwr stop` and signals raise it here
        _note_stop(training)
        raise
    training.history.tell_result(result, config)


def _note_stop(training: Training) -> None:
    reason = f"stopped by `flwr stop` or a signal {training.progress}"
    training.directory.fail(reason)
    log(ERROR, "run %s", reason)


def _failure(error: BaseException) -> RunFailedError:
    log(ERROR, "run failed: %s", error)
    return RunFailedError(str(error))
