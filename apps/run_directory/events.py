"""A run's numbers as TensorBoard events."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apps.evaluation.metric_names import ROUND_FIGURES
from problems.errors import importable
from problems.intervals import FIGURES

TENSORBOARD = "tensorboard"  # in the extra "reports"


def numbers_of(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a line of metrics.jsonl by name, except the round. Site 2's AUC is ``sites/2/auc``."""
    figures = line.get(ROUND_FIGURES, {"sites": []})["sites"]
    of_sites = {f"sites/{site['partition']}/{name}": site[name] for site in figures for name in FIGURES}
    numbers = {name: value for name, value in line.items() if name != "round"} | of_sites
    return {name: value for name, value in numbers.items() if isinstance(value, int | float)}


class Events:
    """A writer of TensorBoard events. Without TensorBoard it writes nothing. The first event creates the file.

    Args:
        folder: The folder of the events.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def write(self, line: Mapping[str, Any]) -> None:
        """Write a round's numbers as a single event: ``SummaryWriter.add_scalar`` is slower (an event each)."""
        if not importable(TENSORBOARD):
            return
        # imported here, since the import takes a second
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is None:
            self._writer = EventFileWriter(str(self._folder))
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers_of(line).items()]
        self._writer.add_event(Event(wall_time=time.time(), step=line["round"], summary=Summary(value=values)))

    def close(self) -> None:
        """Write the remaining events.

        Raises:
            OSError: The events cannot be written.
        """
        if self._writer is not None:
            self._writer.close()
