"""What a site with a file of its own says of errors: all in its own log, and in its answer nothing of the rows."""

import contextlib
from collections.abc import Iterator, Mapping
from logging import ERROR

from flwr.common import log

from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import ConfigError, Scalar
from apps.sites.files import DiskFullError
from apps.sites.rows import DATA_PATH, reads_own
from clients.base import DivergedScoresError
from methods.private import BudgetError
from payloads.record import PayloadError
from privacy.secure_sum import SecureSumError
from problems.errors import InputError
from problems.models.zoo import ModelError

VERBOSE = "verbose-errors"
# errors of configs, of messages, of models and of the disk, whose texts say nothing of the rows
_TOLD = (ConfigError, PayloadError, SecureSumError, BudgetError, ModelError, DiskFullError, DivergedScoresError)


class WithheldError(ValueError):
    """An error whose text stays at the site; this one names its kind and, if it has some, its keys."""


@contextlib.contextmanager
def withhold(config: RunConfig, node: Mapping[str, Scalar]) -> Iterator[None]:
    """Replace errors of the enclosed work that may tell of the site's own file, and log them.

    Those of a vertical run and of nodes without a file of their own stay as they are.

    Raises:
        WithheldError: instead of such an error.
        ConfigError: ``verbose-errors`` of the node config is neither true nor false.
    """
    verbose = node.get(VERBOSE, False)
    if not isinstance(verbose, bool):
        raise ConfigError(VERBOSE, got=repr(verbose), allowed="true or false", hint="change the site's settings")
    own = reads_own(config) or (DATA_PATH in node and not config.algorithm.strategy.vertical)
    try:
        yield
    except Exception as error:
        if verbose or not own or isinstance(error, _TOLD):
            raise
        log(ERROR, "the server is told the kind of this error only: %s: %s", type(error).__name__, error)
        keys = [one.key for one in (error, *error.also)] if isinstance(error, InputError) else [type(error).__name__]
        raise WithheldError(f"{'; '.join(keys)}: this site's log says what is wrong") from error
