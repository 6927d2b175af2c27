"""The redaction of a site's errors: its log has the full text, but its answer quotes nothing of the rows."""

import contextlib
from collections.abc import Iterator, Mapping
from logging import ERROR

from flwr.common import log

from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import ConfigError, Scalar
from apps.sites.rows import reads_own
from apps.sites.settings import SiteConfig
from clients.held_out import DivergedScoresError
from clients.vfb2 import SegmentError
from methods.private import BudgetError
from payloads.record import PayloadError
from privacy.secure_sum import SecureSumError
from problems.errors import InputError
from problems.files import DiskFullError
from problems.models.zoo import ModelError
from vertical.policy import RefusalError, StatedRefusalError

VERBOSE = "verbose-errors"
# errors of configs, messages, models and the disk, whose texts reveal nothing about the rows
_TOLD: tuple[type[Exception], ...] = (ConfigError, PayloadError, SecureSumError, BudgetError, ModelError, DiskFullError)
_TOLD += (DivergedScoresError, StatedRefusalError, SegmentError)


class WithheldError(ValueError):
    """An error in place of an error whose text stays at the site. It names only the kind or the keys."""


class WithheldRefusalError(WithheldError, RefusalError):
    """A party's refusal whose text stays at the party."""


def is_verbose(config: RunConfig, node: Mapping[str, Scalar]) -> bool:
    """Return whether a node's errors leave it in full: if it has no file, or if its config allows it.

    Raises:
        ConfigError: A setting of the site has a wrong value.
    """
    own = SiteConfig.of(node)
    return own.privacy.verbose_errors or not (reads_own(config) or own.data.data_path or own.vertical.score_path)


@contextlib.contextmanager
def withhold(config: RunConfig, node: Mapping[str, Scalar]) -> Iterator[None]:
    """Replace errors of the enclosed work that may reveal facts about the site's own file, and log them.

    Errors of nodes without their own file are not replaced. For a party of a vertical run even the kind and the keys
    would answer questions about its columns, so all its errors have the same form.

    Raises:
        WithheldError: The enclosed work raised such an error.
        ConfigError: A setting of the site has a wrong value.
    """
    verbose = is_verbose(config, node)
    try:
        yield
    except Exception as error:
        if verbose or isinstance(error, _TOLD):
            raise
        if config.algorithm.sites.hold_columns:
            log(ERROR, "the server learns of this error, but not its text: %s: %s", type(error).__name__, error)
            kind = WithheldRefusalError if isinstance(error, RefusalError) else WithheldError
            raise kind(f"party {node.get('partition-id')}: it cannot take part: its own log has the reason") from error
        log(ERROR, "the server learns only the kind of this error: %s: %s", type(error).__name__, error)
        keys = [one.key for one in (error, *error.also)] if isinstance(error, InputError) else [type(error).__name__]
        raise WithheldError(f"{'; '.join(keys)}: this site's log has the reason") from error
