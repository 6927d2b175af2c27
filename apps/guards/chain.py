"""The order of a site's guards, and the functions that run a site's work inside them."""

from collections.abc import Sequence
from functools import partial

from apps.guards.audit import AuditGuard
from apps.guards.form import FormGuard
from apps.guards.guard import Proceed, SiteGuard, Steps
from apps.guards.ledger import LedgerGuard
from apps.guards.memory import MemoryGuard
from apps.guards.policy import PolicyGuard
from apps.guards.sample_privacy import SampleGuard
from apps.guards.secure_sum import SumGuard
from apps.guards.withhold import ErrorGuard
from apps.guards.work import Answer, Work
from apps.sites import resources
from clients.base import Fitted

# The first guard is outermost. Security depends on the order:
# - ErrorGuard sees the errors of all other guards.
# - PolicyGuard checks the owner's policy before any data are read.
# - SampleGuard is innermost, so a message that another guard refuses spends no privacy budget.
# - SampleGuard stores the spent budget before MemoryGuard stores the client's memory.
# - SumGuard masks the answer after MemoryGuard and SampleGuard have changed it.
GUARDS: tuple[SiteGuard, ...] = (
    ErrorGuard(),
    PolicyGuard(),
    AuditGuard(),
    FormGuard(),
    LedgerGuard(),
    SumGuard(),
    MemoryGuard(),
    SampleGuard(),
)
# for work whose answer is discarded
TRIAL: tuple[SiteGuard, ...] = (MemoryGuard(),)


def surround(work: Work, do: Proceed, guards: Sequence[SiteGuard] | None = None) -> Steps:
    """Return a site's work inside its guards, as a generator that has not started.

    Args:
        work: The request at the site.
        do: The work itself.
        guards: The guards, the outermost first. None: `GUARDS`.
    """
    for guard in reversed(GUARDS if guards is None else guards):
        do = partial(guard.at_site, proceed=do)
    return do(work)


def resume(steps: Steps, fitted: Fitted | BaseException | None = None) -> Answer | None:
    """Start or continue a site's work.

    Args:
        steps: The work, see `apps.guards.guard`.
        fitted: The fitted model, or the client's error, to continue the work. None: start the work.

    Returns:
        The answer. None if the client must fit before the work can continue.
    """
    try:
        if isinstance(fitted, BaseException):
            steps.throw(fitted)
        else:
            steps.send(fitted)  # type: ignore[arg-type]
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    return None


def fit(work: Work) -> Fitted | BaseException:
    """Let the work's client fit, and return the model or the client's error."""
    try:
        with resources.turn(work.client.model, work.client.site):
            fitted: Fitted = work.client.fit(work.request.parameters, work.request.config)
            return fitted
    except BaseException as error:  # `resume` raises it inside the guards
        return error


def run(work: Work, do: Proceed) -> Answer:
    """Do a site's work inside all guards.

    Args:
        work: The request at the site.
        do: The work itself.

    Raises:
        Exception: A guard refuses, or the work fails.
    """
    steps = surround(work, do)
    answer = resume(steps) or resume(steps, fit(work))
    assert answer is not None
    return answer
