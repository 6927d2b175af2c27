"""A deployed site uses no path from its server or the run config."""

from pathlib import Path

import pytest
from flwr.app import ConfigRecord

from apps.client_app import app as client_app
from apps.config import ConfigError, Scalar
from apps.parties.blocks import read_block
from apps.sites import shared_disk
from apps.sites.state_store import STATE_DIR
from payloads.handshake import REFUSAL
from payloads.wire import CONFIG, LOCAL
from simulations.engines.flower_internals import own_records
from simulations.engines.grid import task_identity
from tests.battery.federation import federate
from tests.refusals import refuses


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Treat this process as a deployed site, in which no engine runs."""
    monkeypatch.setattr(shared_disk, "_engines", [])
    return monkeypatch


@pytest.mark.parametrize("kind", ["train", "query"])
def test_a_path_in_a_message_is_refused(kind: str, tmp_path: Path, deployed: pytest.MonkeyPatch) -> None:
    """Otherwise a server could make a site write its memory, and its fingerprint's key, to any folder."""
    config: dict[str, Scalar] = {"strategy": "scaffold", "checkpoint-every": 1}
    _, grid = federate(tmp_path / "run", config)  # its clients share the disk, and get the path
    asked = next(one for one in grid.exchanges if one.message.metadata.message_type == "train")
    assert (tmp_path / "run" / "client-state").is_dir()
    message, context = asked.message, grid._contexts[asked.message.metadata.dst_node_id]
    message.__dict__["_content"] = own_records(message.content)
    message.content[LOCAL] = ConfigRecord({STATE_DIR: str(tmp_path)})
    message.metadata.message_type = kind
    deployed.setattr(shared_disk, "_engines", [])
    said = r"message with paths \(state-dir\): paths are allowed only in a simulation"
    with task_identity():
        if kind == "train":
            with refuses(ValueError, said):
                client_app(message, context)
        else:
            assert "message with paths (state-dir)" in client_app(message, context).content[CONFIG][REFUSAL]  # type: ignore[index,call-overload]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_config_names_no_folder_of_a_site(tmp_path: Path, deployed: pytest.MonkeyPatch) -> None:
    (tmp_path / "run-token").write_text("a" * 32)
    with refuses(ConfigError, "vfb2.score-run: got '.*', allowed: the 32 hexadecimal digits"):
        read_block({}, str(tmp_path), "logistic", (0, 2))
    deployed.setattr(shared_disk, "_engines", [True])
    with refuses(ConfigError, "which does not exist, allowed: the party's block of the run"):
        read_block({}, str(tmp_path), "logistic", (0, 2))
