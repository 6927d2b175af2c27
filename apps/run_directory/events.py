"""TensorBoard events: a round's numbers as one event.

``SummaryWriter.add_scalar`` writes one event per number; for a dozen numbers that costs as much as evaluating a model.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


class Events:
    """An event file in ``folder``, flushed in the background."""

    def __init__(self, folder: Path) -> None:
        self._writer = EventFileWriter(str(folder))

    def add(self, numbers: Mapping[str, float], server_round: int) -> None:
        """Write a round's numbers by name."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=server_round, summary=Summary(value=values)))

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()
