"""Runs on one Ray of two CPUs, in a separate process, since Ray leaves threads and open files behind.

    python -m tests.simulations.ray_runs '[["DIRECTORY", {"strategy": "fedx2"}, 2], ...]'

Each run has five clients on two workers. If a round is given, the second worker is killed while it trains in it.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import ray
from flwr.app import Message, MessageType

from apps.server_app import app as server_app
from payloads.wire import CONFIG, PHASE, ROUND
from simulations.arguments import Cluster
from simulations.engines.grid import run_on, task_identity
from simulations.engines.on_ray import RayGrid
from simulations.engines.ray_session import open_ray
from tests.battery.federation import flat_config

CLIENTS, WORKERS = 5, 2


class Deadly(RayGrid):
    """An engine that kills its second worker during training in one round."""

    deadly_round = 0

    def _wait(self, answers: Any, messages: list[Message]) -> list[Message]:
        about = messages[0]
        config = about.content.config_records.get(CONFIG, {})
        asked = about.metadata.message_type, config.get(ROUND), PHASE in config
        if asked == (MessageType.TRAIN, self.deadly_round, False) and about.metadata.dst_node_id % WORKERS == 0:
            time.sleep(0.05)  # both workers train by now
            ray.kill(self._workers[1], no_restart=False)
        return super()._wait(answers, messages)


def main() -> None:
    with task_identity(), open_ray(WORKERS, ""):
        for path, config, deadly_round in json.loads(sys.argv[1]):
            flat = flat_config(Path(path), config)
            grid = Deadly(CLIENTS, flat, (), 1, Cluster(workers=WORKERS))
            grid.deadly_round = deadly_round
            run_on(grid, server_app, flat)


if __name__ == "__main__":
    main()
