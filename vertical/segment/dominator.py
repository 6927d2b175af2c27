"""What an active party does with its sums: it computes and sends theta (Algorithm 2, steps 4 and 5)."""

import hashlib
import math
import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vertical.problem.head import Head
from vertical.problem.objectives import Array, Objective, correct_for_flips
from vertical.segment.plan import SegmentPlan
from vertical.transport.frames import Frame, PartyError

Flips = NDArray[np.bool_]
_DIGEST_BYTES = 32


class Dominator:
    """An active party's labels and loss.

    Args:
        objective: Without correction for flipped labels.
        labels: (n,) without flips.
        flips: (n,) which labels to flip, under label privacy.
        head: Makes predictions of the sums, and is trained here; None: the sums are predictions.
        broadcast: Sends a frame to every other party.
        send: Sends a frame to one party.
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
        """Return (b * k,) the losses' slopes in the sums of some training rows; a head then does its own update.

        Args:
            sums: (b * k,) partials summed over all parties: the predictions, if there is no head.
            rows: (b,) positions of these rows among the training rows, or a slice of them.
        """
        labels, head, width = self._labels[rows], self._head, self._plan.width
        if width > 1:
            sums = sums.reshape(len(labels), width)
        if head is None:
            return self._slopes(sums, labels).ravel()
        return head.learn(sums, self._slopes(head.predict(sums), labels)).ravel()

    def announce(self, kind: int, number: int, theta: Array) -> None:
        """Send theta to all parties that update; the others get an empty frame.

        Args:
            kind: `Kind.THETA`, or `Kind.SNAPSHOT_THETA` of a full pass.
            number: Of the update or full pass.
        """
        frame = Frame(kind, self._me, number, theta.tobytes())
        if self._plan.update_passive:
            self._broadcast(frame)
            return
        for party in range(self._plan.parties):
            if party != self._me:
                self._send(party, frame if self._plan.moves(party) else Frame(kind, self._me, number))


def draw_flips(rows: int, epsilon: float) -> Flips:
    """Draw (rows,) flips of randomised response, each with probability `flip_rate`.

    Args:
        epsilon: Of the labels' differential privacy; at 0 a label is flipped with probability 1/2.
    """
    return come_true(np.full(rows, flip_rate(epsilon)))


def flip_rate(epsilon: float) -> float:
    """1 / (1 + e^epsilon), the probability that randomised response flips a label."""
    return 1.0 / (1.0 + math.exp(min(epsilon, 700.0)))


def come_true(chances: Array) -> Flips:
    """Return (n,) booleans, true with these probabilities, from the system's randomness."""
    uniform = np.frombuffer(os.urandom(8 * len(chances)), dtype=np.uint64) >> np.uint64(11)  # 53 bits
    flips: Flips = uniform < chances * 2.0**53
    return flips


def notice(labels: Array, flips: Flips | None) -> bytes:
    """Return what active parties send one another: a digest of their labels; the first adds its flips, if any.

    Args:
        labels: (n,) before any is flipped.
        flips: (n,) of the first active party under label privacy; else None.
    """
    digest = hashlib.sha256(np.ascontiguousarray(labels, dtype="<f8").tobytes()).digest()
    return digest + (b"" if flips is None else np.packbits(flips).tobytes())


def agreed_flips(plan: SegmentPlan, me: int, own: bytes, notices: dict[int, bytes], held: Flips | None) -> Flips | None:
    """Return (n,) flips that the first active party has sent, once all notices agree; None without label privacy.

    Args:
        own: This party's notice.
        notices: Those of the other active parties.
        held: The flips that this party keeps from an earlier segment.

    Raises:
        PartyError: Labels differ, with both parties named; or a notice is malformed, or the flips are not those held.
    """
    first = plan.active[0]
    every = {**notices, me: own}
    expected = every[first][:_DIGEST_BYTES]
    packed_length = (plan.rows + 7) // 8 if plan.label_epsilon else 0
    for party in plan.active:
        length = _DIGEST_BYTES + (packed_length if party == first else 0)
        if len(every[party]) != length:
            raise PartyError(party, f"its notice of labels has {len(every[party])} bytes, not {length}")
        if every[party][:_DIGEST_BYTES] != expected:
            raise PartyError(party, f"its labels differ from those of party {first}; active parties must hold the same")
    if not packed_length:
        return None
    packed = np.frombuffer(every[first], dtype=np.uint8, offset=_DIGEST_BYTES)
    flips = np.unpackbits(packed, count=plan.rows).view(np.bool_)
    if held is not None and not np.array_equal(held, flips):
        raise PartyError(first, f"its label flips differ from those party {me} has kept; they are drawn once a run")
    return flips
