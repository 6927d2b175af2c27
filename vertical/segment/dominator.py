"""An active party's work as the leader (*dominator*) of its updates, and the label flips of label privacy.

The dominator computes theta, the derivatives of the losses, from its sums and labels, and sends theta to the other
parties (Algorithm 2, steps 4 and 5). Under label privacy, all active parties first invert (*flip*) the same labels.
"""

import hashlib
import math
import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vertical.problem.head import Head
from vertical.problem.objectives import Array, Objective, correct_for_flips
from vertical.segment.plan import SegmentPlan
from vertical.transport.frames import Frame, PartyError, protocol_error

Flips = NDArray[np.bool_]
_DIGEST_BYTES = 32


class Dominator:
    """An active party's labels and losses.

    Args:
        me: The party's index.
        plan: The segment's plan.
        objective: The objective without correction for flipped labels.
        labels: The (n,) labels without flips.
        flips: Whether each of the (n,) labels is inverted. None: no label privacy.
        head: The last layer, which turns sums into predictions and is trained here. None: the sums are the predictions.
        broadcast: A function that sends a frame to every other party.
        send: A function that sends a frame to one party.
    """

    def __init__(
        self,
        me: int,
        plan: SegmentPlan,
        objective: Objective,
        labels: Array,
        flips: Flips | None,
        head: Head | None,
        broadcast: Callable[[Frame], None],
        send: Callable[[int, Frame], None],
    ) -> None:
        self._me = me
        self._labels = labels if flips is None else np.where(flips, -labels, labels)
        self._slopes = (correct_for_flips(objective, plan.label_epsilon) if plan.label_epsilon else objective).slopes
        self._plan, self._head, self._broadcast, self._send = plan, head, broadcast, send

    def theta(self, sums: Array, rows: NDArray[np.int64] | slice) -> Array:
        """Return theta, the (b * k,) derivatives of the losses with respect to the sums. A head then updates itself.

        Args:
            sums: The (b * k,) partials summed over all parties. Without a head, they are the predictions.
            rows: The (b,) positions of the batch among the training rows, or a slice.
        """
        labels, head, width = self._labels[rows], self._head, self._plan.width
        if width > 1:
            sums = sums.reshape(len(labels), width)
        if head is None:
            return self._slopes(sums, labels).ravel()
        return head.learn(sums, self._slopes(head.predict(sums), labels)).ravel()

    def announce(self, kind: int, number: int, theta: Array) -> None:
        """Send theta to all parties whose blocks are updated, and an empty frame to all other parties.

        Args:
            kind: `Kind.THETA`, or `Kind.SNAPSHOT_THETA` in a full pass.
            number: The number of the update or full pass.
            theta: The (b * k,) derivatives.
        """
        frame = Frame(kind, self._me, number, theta.tobytes())
        if self._plan.update_passive:
            self._broadcast(frame)
            return
        for party in range(self._plan.parties):
            if party != self._me:
                self._send(party, frame if self._plan.moves(party) else Frame(kind, self._me, number))


def draw_flips(rows: int, epsilon: float) -> Flips:
    """Draw (rows,) flips of randomised response: whether each label is inverted, with probability `flip_rate`.

    Args:
        rows: The number of labels.
        epsilon: The epsilon of the labels' differential privacy. At 0 a label is flipped with probability 1/2.
    """
    return draw_events(np.full(rows, flip_rate(epsilon)))


def flip_rate(epsilon: float) -> float:
    """Return the probability that randomised response inverts a label: 1 / (1 + e^epsilon)."""
    return 1.0 / (1.0 + math.exp(min(epsilon, 700.0)))


def draw_events(chances: Array) -> Flips:
    """Draw (n,) booleans from the system's randomness, each true with its own probability."""
    uniform = np.frombuffer(os.urandom(8 * len(chances)), dtype=np.uint64) >> np.uint64(11)  # 53 bits
    flips: Flips = uniform < chances * 2.0**53
    return flips


def label_notice(labels: Array, flips: Flips | None) -> bytes:
    """Return an active party's notice for the other active parties: a digest of its labels, followed by its flips.

    Args:
        labels: The (n,) labels without flips.
        flips: The (n,) flips, at the first active party under label privacy. None: the notice has no flips.
    """
    digest = hashlib.sha256(np.ascontiguousarray(labels, dtype="<f8").tobytes()).digest()
    return digest + (b"" if flips is None else np.packbits(flips).tobytes())


def agreed_flips(
    plan: SegmentPlan, me: int, own_notice: bytes, notices: dict[int, bytes], earlier: Flips | None
) -> Flips | None:
    """Check that all notices agree, and return the first active party's (n,) flips; None without label privacy.

    Args:
        plan: The segment's plan.
        me: This party's index.
        own_notice: This party's notice.
        notices: The notices of the other active parties.
        earlier: This party's flips from an earlier segment. None: no earlier flips.

    Raises:
        PartyError: Labels differ (the error names both parties), a notice is malformed, or the flips have changed.
    """
    first = plan.active[0]
    all_notices = {**notices, me: own_notice}
    expected = all_notices[first][:_DIGEST_BYTES]
    packed_length = (plan.rows + 7) // 8 if plan.label_epsilon else 0
    for party in plan.active:
        length = _DIGEST_BYTES + (packed_length if party == first else 0)
        if len(all_notices[party]) != length:
            raise protocol_error(party, f"its notice of labels has {len(all_notices[party])} bytes, not {length}")
        if all_notices[party][:_DIGEST_BYTES] != expected:
            raise PartyError(party, f"its labels differ from party {first}'s: give all active parties equal labels")
    if not packed_length:
        return None
    packed = np.frombuffer(all_notices[first], dtype=np.uint8, offset=_DIGEST_BYTES)
    flips = np.unpackbits(packed, count=plan.rows).view(np.bool_)
    if earlier is not None and not np.array_equal(earlier, flips):
        raise PartyError(first, f"its label flips differ from party {me}'s kept flips of this run: start a new run")
    return flips
