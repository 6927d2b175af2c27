"""The settings of a data owner: how the site's file is read, the content of errors, and the limits on disclosure."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from hypothesis import example, given, settings
from hypothesis import strategies as st

from apps.client_app import app as client_app
from apps.config import ConfigError, Scalar, parse_run_config
from apps.server_app import RunFailedError
from apps.sites.ledger import NAME, open_record
from apps.sites.policy import FIXED, check_demands
from apps.sites.site_config import effective
from payloads.handshake import REFUSAL
from payloads.secure_sum import KEYS as KEYS_STAGE
from payloads.wire import CONFIG, PAYLOAD, PHASE, ROUND, STAGE, SUM_NUMBER, content
from simulations.engines.grid import FIRST_NODE_ID, task_identity
from simulations.engines.in_process import InProcessGrid
from tests.apps.test_own_data import COLUMNS, CSV, files
from tests.battery.federation import Wiretap, federate, flat_config, patients
from tests.refusals import refuses, spell, states

KEYS: dict[str, Scalar] = {**CSV, "strategy": "local-sgd", "feature-columns": COLUMNS}
# all keys of KEYS that determine how a file is read
AGREED: dict[str, Scalar] = {key: value for key, value in KEYS.items() if key not in ("strategy", "partition")}
OWNER: dict[str, Scalar] = {**AGREED, "split-seed": 5}


def shake_hands(node: Mapping[str, Scalar], config: Mapping[str, Scalar] = KEYS) -> ConfigRecord | str:
    """Return a node's report in the handshake, or why it refuses."""
    grid = InProcessGrid(client_app, 1, flat_config(Path("run"), config), [node])
    with task_identity():
        asked = Message(content(config=ConfigRecord({ROUND: 0})), FIRST_NODE_ID, MessageType.QUERY)
        (reply,) = grid.send_and_receive([asked])
    records = reply.content.config_records
    return records[PAYLOAD] if PAYLOAD in records else str(records[CONFIG][REFUSAL])


CHOICES: dict[str, st.SearchStrategy[Scalar]] = {
    "seed": st.integers(0, 2**31),
    "test-fraction": st.sampled_from([0.2, 0.21, 0.5]),
    "validation-fraction": st.sampled_from([0.0, 0.1]),
    "missing-values": st.sampled_from(["", "50", "?"]),
    "missing": st.sampled_from(["error", "mean"]),
    "scale": st.sampled_from(["standard", "log"]),
    "label-column": st.sampled_from(["ill", "sex"]),
    "positive-label": st.sampled_from(["yes", "no"]),
    "feature-columns": st.sampled_from([COLUMNS, "age"]),
    "drop-columns": st.sampled_from(["", "name"]),
    "data-dir": st.sampled_from(["", "/server/test.csv"]),
    "dtype": st.sampled_from(["float32", "float64"]),
    "dataset": st.sampled_from(["csv", "parquet"]),
}


@settings(max_examples=60, deadline=None)
@example(run={"seed": 7, "dtype": "float64", "data-dir": "/server/test.csv"})
@given(run=st.fixed_dictionaries({}, optional=CHOICES))
def test_all_runs_are_told_the_same_of_a_file_or_nothing(
    run: dict[str, Scalar], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "owner"
    folder.mkdir(exist_ok=True)
    (node,) = files(folder, [patients(60, 0)])
    node |= OWNER
    told = shake_hands(node, {**KEYS, **run})
    refused = [key for key in FIXED.keys() & run.keys() if run[key] != {**FIXED, **AGREED}[key]]
    assert isinstance(told, str) == bool(refused)
    assert told == shake_hands(node) or str(told).partition(": ")[0] in refused


def test_without_a_seed_of_its_own_a_site_tells_of_other_rows(tmp_path: Path) -> None:
    (node,) = files(tmp_path, [patients(60, 0)])
    assert shake_hands(node) != shake_hands(node, {**KEYS, "seed": 1})
    assert shake_hands({**node, **OWNER}) != shake_hands({**node, **OWNER, "split-seed": 6})
    named = {**node, "label-column": "ill", "test-fraction": 0.2}
    assert isinstance(shake_hands(named, {**KEYS, "seed": 1}), ConfigRecord)
    told = str(shake_hands(named, {**KEYS, "test-fraction": 0.3}))
    assert states(told, "test-fraction: got a run with test-fraction=0.3, allowed: 0.2, which")


@pytest.mark.parametrize(
    ("node", "run", "said"),
    [
        ({"split-seed": "1"}, {}, "split-seed: got '1', allowed: an integer >= 0"),
        ({"split-seed": 1}, {}, "node config: dataset: got nothing, with split-seed"),
        ({"positive-label": 1}, {}, "node config: positive-label: got 1, allowed: text"),
        ({"test-fraction": "0.2"}, {}, "node config: test-fraction: got '0.2', allowed: a number"),
        ({"label-column": "ill"}, {"partition": "iid", "data-dir": "/a"}, "label-column: got a run with partition='i"),
        ({"split-seed": 1}, {"strategy": "vfb2-sgd", "partition": "iid", "feature-columns": ""}, "partition='iid'"),
        ({"most-evaluations": 5}, {}, "most-evaluations: got no state-dir"),
        (
            {"most-evaluations": 5, "state-dir": "state"},
            {},
            "most-evaluations: got state-dir='state', which is relative",
        ),
        ({"allowed-strategies": "coda, scaffold"}, {}, "strategy: got 'local-sgd', allowed: coda, scaffold, which"),
        (
            {"largest-epsilon": 1, "data-path": "/a"},
            {"partition": "iid", "data-dir": "/a"},
            "largest-epsilon: got a run",
        ),
        ({"largest-delta": 1}, {}, "largest-delta: got 1, allowed: a number in"),
        ({"most-handshakes": -1}, {}, "most-handshakes: got -1, allowed: an integer >= 0"),
        ({"largest-total-epsilon": 1.0}, {}, "largest-total-epsilon: got a run with privacy.epsilon=0"),
        ({"largest-total-epsilon": 1.0}, {"privacy.epsilon": 1.0}, "largest-total-epsilon: got no state-dir"),
        ({"fewest-partys": 3}, {}, "node config: got 'fewest-partys', allowed: 'fewest-parties'; other keys"),
        ({"Allow_Intersection": False}, {}, "node config: got 'Allow_Intersection', allowed: 'allow-intersection'"),
        ({"site-confg": "/srv/a"}, {}, "node config: got 'site-confg', allowed: 'site-config'"),
        ({"mine": "/srv/site.TOML"}, {}, "node config: got 'mine', allowed: 'site-config'"),
        ({"privacy.secure-sum": True}, {}, "node config: got 'privacy.secure-sum', allowed: 'secure-sum'"),
        ({"state-dir": 5}, {}, "node config: state-dir: got 5, allowed: a path"),
    ],
)
def test_a_demand_is_refused_in_words(node: dict[str, Scalar], run: dict[str, Scalar], said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_demands(effective(node), parse_run_config({**KEYS, **run}))
    assert said in spell(refusal.value)


def test_a_node_config_may_have_other_keys() -> None:
    check_demands(effective({"dataset-path": "/a", "site": "a"}), parse_run_config(KEYS))


def write(column: str, value: object, places: slice) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(table: pd.DataFrame) -> pd.DataFrame:
        table = table.astype({column: object})
        table.loc[table.index[places], column] = value
        return table

    return change


FAULTS = {
    "a gap": ("column 'age'", write("age", None, slice(7, 8)), write("age", None, slice(30, 44))),
    "a word": ("column 'weight'", write("weight", "so", slice(3, 4)), write("weight", "heavy", slice(9, 12))),
    "an unlisted text": ("column 'sex'", write("sex", "x", slice(5, 6)), write("sex", "why", slice(8, 12))),
    "an infinity": ("column 'age'", write("age", np.inf, slice(7, 8)), write("age", -np.inf, slice(2, 4))),
    "a missing label": ("column 'ill'", write("ill", None, slice(7, 8)), write("ill", None, slice(8, 12))),
    "few rows": ("training rows", lambda table: table[:9], lambda table: table[30:41]),
    "many labels": ("labels", write("ill", "x" * 70, slice(0, 1)), write("ill", "y" * 80, slice(4, 9))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_does_not_say_which_or_how_many_cells(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, *changes = FAULTS[fault]
    told = []
    for change in changes:
        (node,) = files(tmp_path, [change(patients(60, 0))])
        told.append(shake_hands({**node, "verbose-errors": False}))
        whole = shake_hands(node)
        assert key in str(whole)
        assert str(whole) in caplog.text
    assert told[0] == told[1]
    assert re.fullmatch(f"partition 0: [^0-9]*{key}: this site's log has the reason", str(told[0]))


def test_a_node_with_a_file_says_no_more_where_the_server_names_it(tmp_path: Path) -> None:
    (node,) = files(tmp_path, [write("age", "old", slice(7, 8))(patients(60, 0))])
    run = {**KEYS, "partition": "consecutive", "data-dir": node["data-path"]}
    assert "first in row 8" in str(shake_hands(node, run))
    assert "8" not in str(shake_hands({**node, "verbose-errors": False}, run))
    told = str(shake_hands({**node, "verbose-errors": "no"}))
    assert states(told, "node config: verbose-errors: got 'no', allowed: true or false; change the site's settings")


def test_errors_of_training_and_evaluation_are_withheld_too(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    _, grid = federate(tmp_path / "run", {**KEYS, "num-server-rounds": 1}, nodes=nodes)
    for node in nodes:
        path = str(node["data-path"])
        write("age", "old", slice(7, 8))(pd.read_csv(path)).to_csv(path, index=False)
    for phase in ("", "score-counts"):
        asked = next(one.message for one in grid.exchanges if one.phase == phase and one.partition == 0)
        reason = again(grid, asked)
        assert "partition 0: dataset 'csv': column 'age': this site's log has the reason" in reason
        assert "8" not in reason


def sites(folder: Path, **keys: Scalar) -> list[dict[str, Scalar]]:
    """Return the node configs of three sites, each with files and a ``state-dir``."""
    found = files(folder, [patients(60, place) for place in range(3)])
    return [
        {**node, "state-dir": str(folder / f"state-{place}"), "verbose-errors": False, **keys}
        for place, node in enumerate(found)
    ]


def test_a_site_counts_answers_of_a_file_over_all_runs(tmp_path: Path) -> None:
    nodes = sites(tmp_path, **{"most-evaluations": 7, "most-handshakes": 3})
    run, grid = federate(tmp_path / "first", {**KEYS, "num-server-rounds": 1}, nodes=nodes)
    asked = [one for one in grid.exchanges if one.partition == 0 and one.phase == "score-counts"]
    assert 2 <= len(asked) <= 7
    assert not run.lines[-1]["dropped"]
    longer = {**KEYS, "num-server-rounds": 4, "seed": 1}
    with refuses(RunFailedError, "most-evaluations: got a request for more evaluations than this site's"):
        federate(tmp_path / "second", longer, nodes=nodes)
    while isinstance(last := shake_hands(nodes[0]), ConfigRecord):
        pass
    assert states(last, "most-handshakes: got a request for more handshakes")
    assert (tmp_path / "state-0" / NAME).stat().st_mode & 0o777 == 0o600
    patients(61, 0).to_csv(str(nodes[0]["data-path"]), index=False)
    assert isinstance(shake_hands(nodes[0]), ConfigRecord)
    (tmp_path / "state-0" / NAME).write_text("{")
    assert "state-dir: restore a copy" in str(shake_hands(nodes[0]))


def forget(grid: Wiretap) -> None:
    """Clear the nodes' memory, as a restart of their SuperNodes does."""
    for context in grid._contexts.values():
        context.state = RecordDict()


def again(grid: Wiretap, asked: Message, records: RecordDict | None = None) -> str:
    """Return why a node does not answer a message again, or with other records; "" if it answers."""
    with task_identity():
        message = Message(records or asked.content, asked.metadata.dst_node_id, asked.metadata.message_type)
        (reply,) = grid.send_and_receive([message])
    return str(reply.error.reason) if reply.has_error() else ""


@pytest.mark.parametrize("kept", [True, False])
def test_a_restarted_site_joins_no_second_sum_for_a_round(kept: bool, tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    keys: dict[str, Scalar] = {**KEYS, "privacy.secure-sum": True, "num-server-rounds": 2}
    _, grid = federate(tmp_path / "run", keys, nodes=nodes)
    rounds = [one for one in grid.exchanges if one.message.content.config_records[CONFIG].get("stage") == "keys"]
    trained = [one for one in rounds if not one.phase]
    for one in trained:
        forget(grid)
        if not kept:
            (Path(str(nodes[one.partition]["state-dir"])) / NAME).unlink(missing_ok=True)
            assert not again(grid, one.message)
        else:
            refused = again(grid, one.message)
            assert f"round {one.server_round}, its own exchange: the server requested a second sum" in refused


@pytest.mark.parametrize("phase", ["", "its own exchange"])
def test_a_second_sum_for_a_step_is_refused_whatever_it_is_called(phase: str, tmp_path: Path) -> None:
    """A second sum without a client would, together with the first sum, reveal that client's values."""
    keys: dict[str, Scalar] = {"strategy": "local-sgd", "privacy.secure-sum": True, "num-server-rounds": 2}
    _, grid = federate(tmp_path / "run", keys)
    last = grid.exchanges[-1].message
    told = dict(last.content.config_records[CONFIG]) | {STAGE: KEYS_STAGE, SUM_NUMBER: 9, PHASE: phase}
    assert last.content.config_records[CONFIG][ROUND] == 2
    for server_round in (1, 2):
        asked = content(config=ConfigRecord({**told, ROUND: server_round}))
        assert f"round {server_round}, its own exchange: the server requested a second sum" in again(grid, last, asked)
    assert not again(grid, last, content(config=ConfigRecord({**told, ROUND: 3})))


def test_a_budget_outlives_a_restart_and_holds_for_all_runs(tmp_path: Path) -> None:
    keys: dict[str, Scalar] = {**KEYS, "privacy.epsilon": 2.0, "privacy.delta": 1e-3, "num-server-rounds": 1}
    nodes = sites(tmp_path, **{"largest-total-epsilon": 4.5})
    _, grid = federate(tmp_path / "run-0", keys, nodes=nodes)
    forget(grid)
    asked = next(one.message for one in grid.exchanges if not one.phase)
    assert states(again(grid, asked), "privacy.epsilon: got a request for more than")
    # another number of rounds under the same run would need other noise
    longer = {**keys, "num-server-rounds": 1000}
    for context in grid._contexts.values():
        context.run_config.update(flat_config(tmp_path / "run-0", longer))
    assert states(again(grid, asked), "privacy.epsilon: got 2, with another budget, number of rounds")
    federate(tmp_path / "run-1", keys, nodes=nodes)
    with refuses(
        RunFailedError, r"privacy.epsilon=2 after runs with 4 in all, allowed: a sum of at most 4.5 over all runs"
    ):
        federate(tmp_path / "run-2", keys, nodes=nodes)


def test_three_runs_of_a_third_are_a_whole(tmp_path: Path) -> None:
    keys: dict[str, Scalar] = {**KEYS, "privacy.epsilon": 0.1, "privacy.delta": 1e-3, "num-server-rounds": 1}
    nodes = sites(tmp_path, **{"largest-total-epsilon": 0.3})
    for name in "abc":
        federate(tmp_path / name, keys, nodes=nodes)


def test_sites_may_share_a_folder_and_a_context_may_be_an_earlier_runs(tmp_path: Path) -> None:
    """Each site has separate records in the folder; Flower passes a run's context on to the next run of a series."""
    nodes = [{**node, "state-dir": str(tmp_path / "state")} for node in sites(tmp_path)]
    keys: dict[str, Scalar] = {**KEYS, "num-server-rounds": 2, "privacy.epsilon": 1.0, "privacy.delta": 1e-3}
    run, _ = federate(tmp_path / "epsilon", keys, nodes=nodes)
    assert run.lines[-1]["clients_answered"] == len(nodes)
    run, _ = federate(tmp_path / "sums", {**KEYS, "privacy.secure-sum": True}, nodes=nodes)
    assert run.lines[-1]["clients_answered"] == len(nodes)
    context = Context(1, 0, {}, RecordDict(), {})
    for run_id in (1, 2):
        context.run_id = run_id
        with open_record(context, 0, "record") as record:
            assert record == {}
            record["number"] = 3
    with open_record(context, 0, "record") as record:
        assert record == {"number": 3}
