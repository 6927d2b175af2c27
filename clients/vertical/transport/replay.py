"""Each frame of a sender is accepted once."""

from __future__ import annotations

from clients.vertical.transport.frames import FrameError


class ReplayGuard:
    """Remembers which (kind, active, update) one sender has sent, in bounded memory.

    For each (kind, active) it keeps the highest update and a bit for each of the `width` last ones. Order is free
    within them; what is older is refused, since it cannot be told from a repetition.

    Args:
        width: updates that may overtake one another.
        streams: pairs (kind, active) a sender may use.
    """

    __slots__ = ("_full", "_streams", "_width", "_windows")

    def __init__(self, width: int = 1024, streams: int = 4096) -> None:
        if width < 1 or streams < 1:
            raise ValueError(f"width and streams are at least 1, not {width} and {streams}")
        self._width = width
        self._full = (1 << width) - 1
        self._streams = streams
        # (kind, active) -> [highest update, bit k: update highest - k was seen]
        self._windows: dict[int, list[int]] = {}

    def accept(self, kind: int, active: int, update: int) -> None:
        """Take note of a frame; FrameError when it came before or is too old to tell."""
        window = self._windows.get(kind << 16 | active)
        if window is None:
            if len(self._windows) >= self._streams:
                raise FrameError(f"it uses more than {self._streams} pairs of kind and active party")
            self._windows[kind << 16 | active] = [update, 1]
            return
        ahead = update - window[0]
        if ahead > 0:
            window[0] = update
            window[1] = ((window[1] << ahead) | 1) & self._full if ahead < self._width else 1
            return
        bit = 1 << -ahead if -ahead < self._width else 0
        if not bit:
            raise FrameError(
                f"frame (kind {kind}, active {active}, update {update}) is more than {self._width} updates old"
            )
        if window[1] & bit:
            raise FrameError(f"frame (kind {kind}, active {active}, update {update}) came a second time")
        window[1] |= bit
