"""Runs in MLflow: in a folder, on a server, and on a server that is down."""

import json
import logging
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from apps.config import ConfigError, flatten, parse_run_config
from apps.run_directory import tracking
from apps.server_app import RunFailedError
from simulations.engines.checking import check_run
from simulations.engines.launch import run_centralized
from tests.battery.federation import Run, federate, flat_config
from tests.refusals import refuses

mlflow = pytest.importorskip("mlflow")
KEYS = {"num-server-rounds": 3, "checkpoint-every": 1, "strategy": "local-sgd"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the environment variables that the tracker sets."""
    for name in tracking._ENVIRONMENT:
        monkeypatch.setenv(name, os.environ.get(name, "true"))
        monkeypatch.delenv(name)
    monkeypatch.setattr(tracking, "PAUSE", 0.0)


def run(folder: Path, uri: str, **keys: Any) -> Run:
    more = {key.replace("_", "-"): value for key, value in keys.items()}
    return federate(folder, {**KEYS, "tracking-uri": uri, **more}, 2)[0]


class Store:
    """An experiment in a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uri = folder.as_uri()
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        self.client = mlflow.MlflowClient(tracking_uri=self.uri)

    def runs(self, experiment: str = "florilegium") -> list[Any]:
        found = self.client.get_experiment_by_name(experiment)
        return list(self.client.search_runs([found.experiment_id])) if found else []

    def history(self, run_id: str, metric: str) -> list[tuple[int, float]]:
        return sorted((one.step, one.value) for one in self.client.get_metric_history(run_id, metric))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    return Store(tmp_path / "mlruns", monkeypatch)


def test_settings_numbers_tags_and_files_are_there(store: Store, tmp_path: Path) -> None:
    done = run(tmp_path / "run", store.uri, tracking_experiment="mine", evaluate_every=2, pictures=True)
    (found,) = store.runs("mine")
    for metric in ("auc", "loss", "bytes_up", "seconds"):
        assert store.history(found.info.run_id, metric) == [(x["round"], x[metric]) for x in done.lines if metric in x]
    config = flatten(parse_run_config(flat_config(done.path, {**KEYS, "tracking-uri": store.uri})).resolve())
    assert found.data.params == {key: str(value) for key, value in config.items()} | {
        "tracking-experiment": "mine",
        "evaluate-every": "2",
        "pictures": "True",
    }
    tags = {"strategy": "local-sgd", "dataset": "digits", "engine": "in-process", "mlflow.runName": "run"}
    versions = {f"version.{name}": version for name, version in done.result["versions"].items()}
    assert tags | versions == {name: found.data.tags[name] for name in tags | versions}
    assert found.info.status == "FINISHED"
    files = {one.path for one in store.client.list_artifacts(found.info.run_id)}
    assert files == {"config.toml", "metrics.jsonl", "result.json", "model.safetensors", "curves.png"}
    model = store.client.download_artifacts(found.info.run_id, "model.safetensors", str(tmp_path))
    assert Path(model).read_bytes() == done.model_bytes


def test_a_resumed_run_goes_on_in_mlflow(store: Store, tmp_path: Path) -> None:
    """Rounds that ran again, or that were not tracked at first, are recorded once."""
    first = run(tmp_path / "run", store.uri, num_server_rounds=2)
    (begun,) = store.runs()
    (first.path / "checkpoints" / "round-000002.safetensors").unlink()  # round 2 runs again
    run(tmp_path / "run", store.uri, resume=True)
    run(tmp_path / "run", "", resume=True, num_server_rounds=4)
    done = run(tmp_path / "run", store.uri, resume=True, num_server_rounds=5)
    (found,) = store.runs()
    assert (found.info.run_id, found.info.status) == (begun.info.run_id, "FINISHED")
    assert store.history(found.info.run_id, "auc") == [(line["round"], line["auc"]) for line in done.lines]
    # in another store it begins again, with all rounds
    other = run(tmp_path / "run", store.uri, resume=True, num_server_rounds=6, tracking_experiment="other")
    (moved,) = store.runs("other")
    assert store.history(moved.info.run_id, "auc") == [(line["round"], line["auc"]) for line in other.lines]


def test_a_run_that_fails_says_so(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunFailedError):
        run(tmp_path / "run", store.uri, learning_rate=1e38)
    (found,) = store.runs()
    assert found.info.status == "FAILED"
    assert "0 of 2 clients sent a valid reply" in found.data.tags["failure"]


def test_a_reference_is_tracked_and_a_check_is_not(store: Store, tmp_path: Path) -> None:
    flat = flat_config(tmp_path / "run", {**KEYS, "tracking-uri": store.uri})
    check_run(2, {key: value for key, value in flat.items() if key not in ("output-dir", "run-name")})
    assert not store.runs()
    run_centralized(2, flat)
    (found,) = store.runs()
    assert found.data.tags["engine"] == "centralized"
    assert [step for step, _ in store.history(found.info.run_id, "auc")] == [0, 1, 2, 3]


class Server(BaseHTTPRequestHandler):
    """The part of MLflow's REST interface that a tracked run uses; while it is ``down`` it answers 503."""

    down: int
    sent: list[tuple[str, dict[str, Any]]]
    artifacts: str

    def do_GET(self) -> None:
        self.answer({})

    def do_POST(self) -> None:
        self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def answer(self, asked: dict[str, Any]) -> None:
        name = self.path.split("mlflow/")[1].split("?")[0]
        info = {"run_id": "r1", "experiment_id": "1", "artifact_uri": self.artifacts, "status": "RUNNING"}
        replies: dict[str, Any] = {
            "experiments/create": {"experiment_id": "1"},
            "runs/create": {"run": {"info": info, "data": {}}},
            "runs/get": {"run": {"info": info, "data": {}}},
            "runs/update": {"run_info": info},
            "runs/log-batch": {},
        }
        code, reply = (200, replies[name]) if name in replies else (404, {"error_code": "RESOURCE_DOES_NOT_EXIST"})
        if type(self).down > 0:
            type(self).down -= 1
            code, reply = 503, {}
        else:
            type(self).sent.append((name, asked))
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(reply).encode())

    def log_message(self, *words: Any) -> None:
        """Log nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, type[Server]]]:
    (tmp_path / "artifacts").mkdir()
    kind = type("Mine", (Server,), {"down": 0, "sent": [], "artifacts": (tmp_path / "artifacts").as_uri()})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as serving:
        threading.Thread(target=serving.serve_forever).start()
        yield f"http://127.0.0.1:{serving.server_port}", kind
        serving.shutdown()


def test_a_server_that_comes_back_gets_every_round(
    server: tuple[str, type[Server]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri, kind = server
    kind.down = 4
    with caplog.at_level(logging.INFO):
        done = run(tmp_path / "run", uri)
    assert kind.down == 0
    metrics = [one for name, asked in kind.sent if name == "runs/log-batch" for one in asked.get("metrics", [])]
    auc = [(int(one.get("step", 0)), one["value"]) for one in metrics if one["key"] == "auc"]
    assert auc == [(line["round"], line["auc"]) for line in done.lines]
    assert kind.sent[-1][0] == "runs/update"
    assert kind.sent[-1][1]["status"] == "FINISHED"
    assert (tmp_path / "artifacts" / "result.json").exists()
    assert [text for text in caplog.messages if "for now" in text or "again" in text] == [
        next(text for text in caplog.messages if text.startswith(f"nothing is tracked at {uri} for now (")),
        f"tracked at {uri} again",
    ]


def test_a_server_that_is_down_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    done = run(tmp_path / "run", "http://127.0.0.1:9")
    assert done.result["rounds"] == 3
    told = [record for record in caplog.records if "nothing is tracked" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"]
    assert not (done.path / tracking.RECORD).exists()


def test_without_mlflow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("problems.errors.importable", lambda module: module != "mlflow")
    with pytest.raises(RunFailedError, match=r'tracking-uri: needs mlflow.*pip install "florilegium\[tracking\]"'):
        run(tmp_path / "run", "http://127.0.0.1:9")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("uri", ["runs", "file:relative", "http://me:secret@host", "https://", "sqlite:///a.db"])
def test_other_addresses_are_refused(uri: str) -> None:
    with refuses(ConfigError, "tracking-uri: got .*, allowed: file:///folder, or http"):
        parse_run_config({"tracking-uri": uri})
