"""The redaction of a site's errors: the site's log has the full text, but the answer to the server has no details."""

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
# errors of configs, messages, models and the disk, whose texts are sent: they reveal nothing about the rows
_SENT: tuple[type[Exception], ...] = (ConfigError, PayloadError, SecureSumError, BudgetError, ModelError, DiskFullError)
_SENT += (DivergedScoresError, StatedRefusalError, SegmentError)


class WithheldError(ValueError):
    """An error that replaces another error, whose text stays at the site. It names only the type or the keys."""


class WithheldRefusalError(WithheldError, RefusalError):
    """A party's refusal whose text stays at the party."""


def is_verbose(config: RunConfig, node: Mapping[str, Scalar]) -> bool:
    """Return whether a node sends errors in full: without an own file, or with ``verbose-errors`` in its config.

    Raises:
        ConfigError: A setting of the site has a wrong value.
    """
    own = SiteConfig.of(node)
    return own.privacy.verbose_errors or not (reads_own(config) or own.data.data_path or own.vertical.score_path)


@contextlib.contextmanager
def withhold(config: RunConfig, node: Mapping[str, Scalar]) -> Iterator[None]:
    """Replace errors of the enclosed work that may reveal facts about the site's own file, and log them.

    Errors of nodes without their own file are not replaced. For a party of a vertical run, even the type and the keys
    of an error would answer questions about the party's columns, so all its errors have the same text.

    Raises:
        WithheldError: The enclosed work raised such an error.
        ConfigError: A setting of the site has a wrong value.
    """
    verbose = is_verbose(config, node)
    try:
        yield
    except Exception as error:
        if verbose or isinstance(error, _SENT):
            raise
        if config.algorithm.sites.hold_columns:
            log(ERROR, "the server learns of this error, but not its text: %s: %s", type(error).__name__, error)
            kind = WithheldRefusalError if isinstance(error, RefusalError) else WithheldError
            raise kind(f"party {node.get('partition-id')} cannot take part; its own log has the reason") from error
        log(ERROR, "the server learns only the kind of this error: %s: %s", type(error).__name__, error)
        keys = [each.key for each in (error, *error.also)] if isinstance(error, InputError) else [type(error).__name__]
        raise WithheldError(f"{'; '.join(keys)}: this site's log has the reason") from error
