"""Runs with ``privacy.secure-sum`` find the same models as runs without, and the server sees sums only."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod

from apps.client_app import app as client_app
from apps.config import ConfigError, Scalar, parse_run_config
from apps.mods import make_client_app
from apps.registry import ALGORITHMS
from apps.server_app import RunFailedError
from apps.server_app import app as server_app
from clients.secure_sum import MEMORY, Demands, SumClient
from payloads.flower_internals import values_of
from payloads.secure_sum import BOXES, KEYS, STAGES, MaskedValues
from payloads.wire import ARRAYS, CONFIG, LARGEST_SITE, PAYLOAD, PRESENT, STAGE
from privacy.secure_sum import SecureSumError
from simulations.engines.flower_internals import own_records
from simulations.engines.grid import FIRST_NODE_ID, task_identity
from tests.battery.federation import PATIENTS, Exchange, Run, Wiretap, federate, flat_config, patients, serve
from tests.battery.test_resume import assert_same_run
from tests.refusals import refuses, states

SUMMED = [
    name
    for name, row in ALGORITHMS.items()
    if row.strategy.shares_model and not row.strategy.own_values(row.settings())
]
UNEQUAL: dict[str, Scalar] = {"dataset": "breast-cancer", "partition": "dirichlet", "privacy.secure-sum": True}


def stage_of(exchange: Exchange) -> str:
    """Return the stage of the secure sum in an exchange, or ""."""
    records = exchange.message.content.config_records
    return str(records[CONFIG].get(STAGE, "values" if PRESENT in records else ""))


def silence(stage: str, partitions: tuple[int, ...], server_round: int = 2) -> Callable[[Exchange], Message]:
    """Silence some clients in a stage of a round."""

    def tamper(exchange: Exchange) -> Message:
        silent = exchange.partition in partitions and exchange.server_round == server_round
        if silent and stage_of(exchange) == stage:
            return Message(Error(1, "gone"), reply_to=exchange.message)
        return exchange.reply

    return tamper


def test_all_but_those_whose_clients_send_their_own_values_can_be_summed() -> None:
    horizontal = {name for name, row in ALGORITHMS.items() if row.strategy.shares_model}
    assert horizontal - set(SUMMED) == {"fedx1", "fedx2", "fgdro-kl", "fgdro-cvar"}
    with refuses(ConfigError, "each client's own FedXPredictions.positive_scores"):
        parse_run_config({"strategy": "fedx2", "privacy.secure-sum": True})


@pytest.mark.parametrize("strategy", SUMMED)
def test_the_model_is_the_one_without_masks(strategy: str, tmp_path: Path) -> None:
    asked = 1.0 if ALGORITHMS[strategy].traits.needs_all_clients else 0.7
    config: dict[str, Scalar] = {**UNEQUAL, "strategy": strategy, "dtype": "float64", "fraction-train": asked}
    plain, _ = federate(tmp_path / "plain", {**config, "privacy.secure-sum": False}, clients=6)
    masked, _ = federate(tmp_path / "masked", config, clients=6)
    for name, value in plain.model.items():
        # 2^-56 for each value, in three rounds of a few steps
        np.testing.assert_allclose(masked.model[name], value, rtol=1e-9, atol=1e-12)
    stacked, _ = federate(tmp_path / "stacked", config, clients=6, stack=6)
    for name, value in masked.model.items():
        np.testing.assert_allclose(stacked.model[name], value, rtol=1e-9, atol=1e-12)
    again, _ = federate(tmp_path / "again", config, clients=6)
    assert again.model_bytes == masked.model_bytes
    bytes_of = {run: run.lines[-1]["bytes_up"] + run.lines[-1]["bytes_down"] for run in (plain, masked)}
    assert bytes_of[masked] > bytes_of[plain]


def test_float32_costs_a_rounding_and_a_fiftieth_of_the_bytes(tmp_path: Path) -> None:
    config: dict[str, Scalar] = {**UNEQUAL, "strategy": "scaffold", "model": "mlp"}
    plain, _ = federate(tmp_path / "plain", {**config, "privacy.secure-sum": False}, clients=6)
    masked, _ = federate(tmp_path / "masked", config, clients=6)
    for name, value in plain.model.items():
        # six values within 16 leave 24 fractional bits: 2^-25 for each value, in three rounds
        np.testing.assert_allclose(masked.model[name], value, rtol=0, atol=1e-6)
    for way in ("bytes_up", "bytes_down"):
        assert 1 < masked.lines[-1][way] / plain.lines[-1][way] < 1.3


@pytest.mark.parametrize("stage", ["keys", "boxes", "values", "views", "shares"])
def test_who_leaves_in_a_stage_is_named_and_the_sum_is_that_of_the_others(stage: str, tmp_path: Path) -> None:
    config: dict[str, Scalar] = {**UNEQUAL, "strategy": "local-sgd", "dtype": "float64"}
    masked, _ = federate(tmp_path / "masked", config, clients=7, tamper=silence(stage, (1, 4)))

    def drop(exchange: Exchange) -> Message:
        gone = exchange.partition in (1, 4) and exchange.server_round == 2 and stage not in ("views", "shares")
        return Message(Error(1, "gone"), reply_to=exchange.message) if gone else exchange.reply

    plain, _ = federate(tmp_path / "plain", {**config, "privacy.secure-sum": False}, clients=7, tamper=drop)
    assert sorted(masked.lines[2]["dropped"]) == ["1", "4"]
    assert all("gone" in reason for reason in masked.lines[2]["dropped"].values())
    for name, value in plain.model.items():
        np.testing.assert_allclose(masked.model[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("stage", "reason"),
    [
        ("keys", "2 clients; a secure sum needs at least 3"),
        ("boxes", "only 0 clients can be unmasked; no answer from 0, 1, 2"),
        ("values", "only 2 of 5 clients sent values, too few to unmask the sum; partition 0: "),
        ("views", "2 clients confirmed the members of the sum, too few to unmask it; partition 0: "),
        ("shares", "partition 0: 2 shares of its seed, needed: 3; no answer from partitions 1, 2"),
    ],
)
def test_a_sum_that_cannot_be_unmasked_ends_the_run_and_says_why(stage: str, reason: str, tmp_path: Path) -> None:
    config: dict[str, Scalar] = {**UNEQUAL, "strategy": "local-sgd", "min-train-nodes": 1}
    with pytest.raises(RunFailedError, match=f"round 2: secure sum: {reason}"):
        federate(tmp_path / "run", config, clients=5, tamper=silence(stage, (0, 1, 2)))


def test_the_server_sees_one_client_s_values_nowhere(tmp_path: Path) -> None:
    config: dict[str, Scalar] = {**UNEQUAL, "strategy": "scaffold", "model": "mlp", "num-server-rounds": 1}
    _, plain = federate(tmp_path / "plain", {**config, "privacy.secure-sum": False}, clients=4)
    _, masked = federate(tmp_path / "masked", config, clients=4)
    own = {
        e.partition: np.frombuffer(e.reply.content.config_records[PAYLOAD]["change"][-8000:], "f4")
        for e in plain.exchanges
    }
    sent = [exchange for exchange in masked.exchanges if stage_of(exchange) == "values"]
    assert len(sent) == 4
    for exchange in sent:
        assert ARRAYS not in exchange.reply.content
        record = exchange.reply.content.config_records[PAYLOAD]
        elements = MaskedValues.from_record(record).elements
        counts = np.bincount((elements.view(np.uint32) >> 28), minlength=16)
        # chi-squared with 15 degrees of freedom: 45 has a probability of 1e-4
        assert ((counts - len(elements) / 16) ** 2 / (len(elements) / 16)).sum() < 45
        for values in own.values():
            assert abs(np.corrcoef(elements[-2000:], values)[0, 1]) < 4 / np.sqrt(2000)


def test_no_stage_is_answered_twice(tmp_path: Path) -> None:
    _, grid = federate(tmp_path / "run", {**UNEQUAL, "strategy": "local-sgd", "num-server-rounds": 1}, clients=3)
    for stage in STAGES:
        message = next(one.message for one in grid.exchanges if stage_of(one) == stage)
        with task_identity():
            again = Message(message.content, dst_node_id=message.metadata.dst_node_id, message_type="train")
            (reply,) = grid.send_and_receive([again])
        wrong = (
            "sum 1 was requested again" if stage == "keys" else f"stage '{stage}' was requested out of turn or twice"
        )
        assert wrong in reply.error.reason


@pytest.mark.parametrize(("name", "value"), [("seed", b"short"), ("mask_keys", "text"), ("answered", None)])
def test_a_damaged_memory_is_one_error_that_names_what(name: str, value: Any) -> None:
    state = RecordDict()
    client = SumClient(0, 1, b"a sum", bytes(32), 1, state, 2 / 3, Demands())
    client.answer(KEYS, None)
    values_of(state.config_records[MEMORY])[name] = value
    with pytest.raises(SecureSumError, match=f"this node's memory of its secure sums is damaged: {name}$"):
        client.answer(BOXES, None)


def test_a_second_run_of_a_series_has_its_own_sums() -> None:
    state = RecordDict()
    for run in (5, 6):
        SumClient(0, 1, b"a sum", bytes(32), run, state, 2 / 3, Demands()).answer(KEYS, None)
    with pytest.raises(SecureSumError, match="sum 1 was requested again"):
        SumClient(0, 1, b"a sum", bytes(32), 6, state, 2 / 3, Demands()).answer(KEYS, None)


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.gate
def test_flower_s_engine_finds_the_same_model(tmp_path: Path, flower_engine: object) -> None:
    config: dict[str, Scalar] = {**UNEQUAL, "strategy": "scaffold", "num-server-rounds": 2}
    here, _ = federate(tmp_path / "here", config, clients=3)
    there = flower_engine.run(tmp_path / "there", config, 3)  # type: ignore[attr-defined]
    assert there.model_bytes == here.model_bytes
    assert flat_config(tmp_path / "here", config)["privacy.secure-sum"] is True


def test_a_site_decides_which_runs_it_joins(tmp_path: Path) -> None:
    config: dict[str, Scalar] = {**UNEQUAL, "strategy": "local-sgd", "num-server-rounds": 1}
    nodes: list[dict[str, Scalar]] = [{}, {}, {"secure-sum": True, "fewest-summed": 4}]
    with refuses(RunFailedError, "secure-sum: got a run with privacy.secure-sum=false, allowed: true"):
        federate(tmp_path / "plain", {**config, "privacy.secure-sum": False}, nodes=nodes)
    with refuses(RunFailedError, "3 clients take part in the sum, allowed: at least 4"):
        federate(tmp_path / "few", config, nodes=nodes)
    run, _ = federate(tmp_path / "enough", config, nodes=[*nodes, {}])
    assert run.result["rounds"] == 1
    with refuses(RunFailedError, "fewest-summed: got 'many', allowed: an integer >= 3"):
        federate(tmp_path / "wrong", config, nodes=[{}, {}, {"fewest-summed": "many"}])


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_client_sends_nothing_outside_of_a_sum(kind: str, tmp_path: Path) -> None:
    config: dict[str, Scalar] = {**UNEQUAL, "strategy": "local-sgd", "num-server-rounds": 1}
    _, grid = federate(tmp_path / "run", config, clients=3)
    asked = next(one.message for one in grid.exchanges if stage_of(one) == "values")
    with task_identity():
        records = RecordDict({name: asked.content[name] for name in (ARRAYS, CONFIG)})
        (reply,) = grid.send_and_receive([Message(records, dst_node_id=FIRST_NODE_ID, message_type=kind)])
    assert "the server requested this site's values outside a secure sum" in reply.error.reason


@pytest.mark.parametrize(("where", "record"), [("more", ConfigRecord({"a": 1})), (PRESENT, MetricRecord())])
def test_a_client_refuses_a_message_with_parts_that_it_does_not_read(where: str, record: Any, tmp_path: Path) -> None:
    config: dict[str, Scalar] = {**UNEQUAL, "strategy": "local-sgd", "num-server-rounds": 1}
    _, grid = federate(tmp_path / "run", config, clients=3)
    asked = next(one.message for one in grid.exchanges if stage_of(one) == "values")
    records = own_records(asked.content)
    records[where] = record
    with task_identity():
        (reply,) = grid.send_and_receive([Message(records, dst_node_id=FIRST_NODE_ID, message_type="train")])
    assert states(reply.error.reason, f"message with {type(record).__name__} {where!r}, allowed: ")


def test_a_site_s_demands_hold_for_every_message(tmp_path: Path) -> None:
    config: dict[str, Scalar] = {
        **UNEQUAL,
        "strategy": "local-sgd",
        "num-server-rounds": 1,
        "privacy.secure-sum": False,
    }
    _, plain = federate(tmp_path / "run", config, clients=3)
    asked = next(one.message for one in plain.exchanges if ARRAYS in one.message.content)
    nodes: list[dict[str, Scalar]] = [{"secure-sum": True}] * 3
    grid = Wiretap(client_app, 3, flat_config(tmp_path / "other", config), nodes)  # no handshake took place
    with task_identity():
        (reply,) = grid.send_and_receive([Message(asked.content, dst_node_id=FIRST_NODE_ID, message_type="train")])
    assert "since this site's settings demand secure sums" in reply.error.reason


def test_the_largest_site_is_not_the_server_s_to_choose(tmp_path: Path) -> None:
    class Lying(Wiretap):
        def push_messages(self, messages: Any) -> list[str]:
            told = list(messages)
            for message in told:
                if PRESENT in message.content and message.metadata.dst_node_id > FIRST_NODE_ID:
                    message.__dict__["_content"] = own_records(message.content)  # other messages share it
                    message.content[CONFIG] = ConfigRecord({**message.content[CONFIG], LARGEST_SITE: 2**40})
            return super().push_messages(told)

    config: dict[str, Scalar] = {**UNEQUAL, "strategy": "local-sgd", "num-server-rounds": 1, "dtype": "float64"}
    flat = flat_config(tmp_path / "lying", config)
    # clients that were asked different questions do not confirm each other's view of the sum
    with pytest.raises(RunFailedError, match="0 neighbours have the same view of the sum"):
        serve(Lying(client_app, 3, flat), server_app, flat)


def test_a_client_with_another_run_config_is_dropped(tmp_path: Path) -> None:
    """A server that gives one client another step would learn that client's step from the sum."""
    config: dict[str, Scalar] = {**UNEQUAL, "strategy": "local-sgd", "num-server-rounds": 1}
    flat = flat_config(tmp_path / "run", config)
    grid = Wiretap(client_app, 5, flat)
    grid._contexts[FIRST_NODE_ID + 2].run_config = {**flat, "learning-rate": 1e-30}
    serve(grid, server_app, flat)
    assert Run(tmp_path / "run").lines[1]["dropped"] == {"2": "secure sum: another run config than most clients have"}


def write_keys(folder: Path, count: int) -> list[Path]:
    """Write private keys of some sites as files, and next to each a file ``.pub`` with its public key."""
    paths = [folder / f"site-{number}.pem" for number in range(count)]
    for path in paths:
        key = X25519PrivateKey.generate()
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        path.with_suffix(".pub").write_bytes(
            key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )
    return paths


def test_sites_that_know_each_other_s_keys_sum_with_nobody_else(tmp_path: Path) -> None:
    config: dict[str, Scalar] = {**UNEQUAL, "strategy": "local-sgd", "num-server-rounds": 2}
    keys, known = write_keys(tmp_path, 4), tmp_path / "known.pem"
    known.write_bytes(b"".join(path.with_suffix(".pub").read_bytes() for path in keys[:3]))
    nodes: list[dict[str, Scalar]] = [{"sum-key": str(path), "sum-peers": str(known)} for path in keys]
    run, _ = federate(tmp_path / "known", config, nodes=nodes[:3])
    plain, _ = federate(tmp_path / "plain", config, clients=3)
    assert run.model_bytes == plain.model_bytes
    with refuses(RunFailedError, "partition 3 has none of the keys in this site's sum-peers"):
        federate(tmp_path / "stranger", {**config, "min-train-nodes": 1}, nodes=nodes)
    with refuses(RunFailedError, r"sum-peers: got .*the text contains no public key, allowed: a file"):
        federate(tmp_path / "wrong", config, nodes=[*nodes[:2], {"sum-peers": str(keys[0])}])


def test_a_mod_that_would_change_a_model_is_refused(tmp_path: Path) -> None:
    flat = flat_config(tmp_path / "run", {**UNEQUAL, "strategy": "local-sgd"})
    app = make_client_app(LocalDpMod(clipping_norm=0.1, sensitivity=0.2, epsilon=0.9, delta=1e-5))
    with pytest.raises(RunFailedError, match="a mod that changes the model: with privacy.secure-sum a reply contains"):
        serve(Wiretap(app, 3, flat), server_app, flat)


@pytest.mark.parametrize("keys", [{"strategy": "scaffold"}, {"strategy": "fedx2", "fedx.tau": 2}])
def test_a_run_that_was_cut_and_continued_is_the_whole_one(keys: dict[str, Scalar], tmp_path: Path) -> None:
    histogram: dict[str, Scalar] = {"fedx.pool": "histogram", "score": "sigmoid"}
    config: dict[str, Scalar] = {**UNEQUAL, **histogram, **keys, "checkpoint-every": 2, "num-server-rounds": 4}
    whole, _ = federate(tmp_path / "whole", config, clients=4)
    federate(tmp_path / "cut", {**config, "num-server-rounds": 2}, clients=4)
    cut, _ = federate(tmp_path / "cut", {**config, "resume": True}, clients=4)
    assert_same_run(cut, whole)


def test_sites_that_evaluate_send_the_sum_of_their_counts(tmp_path: Path) -> None:
    for site in range(4):
        patients(60 + 20 * site, site).to_csv(tmp_path / f"{site}.csv", index=False)
    nodes: list[dict[str, Scalar]] = [
        {"data-path": str(tmp_path / f"{site}.csv"), "least-cell": 1} for site in range(4)
    ]
    config: dict[str, Scalar] = {
        **PATIENTS,
        "strategy": "local-sgd",
        "dtype": "float64",
    }
    plain, _ = federate(tmp_path / "plain", config, nodes=nodes)
    summed, _ = federate(tmp_path / "summed", {**config, "privacy.secure-sum": True}, nodes=nodes)
    for expected, line in zip(plain.lines, summed.lines, strict=True):
        assert {name: line[name] for name in ("auc", "average_precision")} == pytest.approx(
            {name: expected[name] for name in ("auc", "average_precision")},
            abs=0.01,  # one exchange, without finer bins
        )
    assert not any(line["dropped"] for line in summed.lines)


def test_values_of_other_lengths_are_dropped_whoever_comes_first(tmp_path: Path) -> None:
    def shorten(exchange: Exchange) -> Message:
        if exchange.partition == 0 and stage_of(exchange) == "values" and exchange.server_round == 2:
            record = exchange.reply.content.config_records[PAYLOAD]
            odd = MaskedValues.from_record(record)
            values = {"elements": odd.elements[:-1], "lengths": odd.lengths - [1, 0]}
            exchange.reply.content[PAYLOAD] = MaskedValues(**values).to_record()
        return exchange.reply

    config: dict[str, Scalar] = {**UNEQUAL, "strategy": "local-sgd", "dtype": "float64"}
    run, _ = federate(tmp_path / "run", config, clients=5, tamper=shorten)
    expected, _ = federate(tmp_path / "expected", config, clients=5, tamper=silence("values", (0,)))
    assert run.lines[2]["dropped"] == {"0": "MaskedValues.lengths: got [30, 1], most clients sent [31, 1]"}
    assert run.lines[2]["clients_answered"] == 4
    assert run.model_bytes == expected.model_bytes
