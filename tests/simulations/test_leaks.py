"""Tests that the attacks of `benchmarks.attacks` find planted leaks, and no protected values.

The results of each demonstration are compared with docs/vertical-leaks.md in ``tests/docs/test_security.py``.
"""

import json
import math

import numpy as np
import pytest
import typer

from benchmarks.attacks import decoding, leaks
from benchmarks.attacks.__main__ import DEMONSTRATIONS, main
from benchmarks.attacks.leaks import Equations
from benchmarks.attacks.watched import pairwise_keys, patients, updates
from tests.refusals import refuses
from vertical.masking.pairwise import RING, PairwiseMasks
from vertical.problem.blocks import make_block
from vertical.problem.objectives import make_objective


def test_what_is_watched_is_sgd_on_all_columns() -> None:
    features, labels = patients((3, 2, 2), rows=40)
    objective = make_objective("logistic", 1e-2)
    block = make_block(np.hstack(features), "sgd", objective, 0.5)
    seen_rows = []
    for seen in updates(features, labels, objective, step=0.5, batch_size=16, epochs=3):
        z = block.partials(seen.rows)
        np.testing.assert_allclose(seen.partials.sum(axis=0), z, atol=1e-10)
        np.testing.assert_allclose(seen.others, seen.partials[1:].sum(axis=0), atol=2e-12)
        np.testing.assert_allclose(seen.theta, objective.slopes(z, labels[seen.rows]), atol=1e-10)
        assert np.abs(RING.decode(seen.received[0]) - seen.partials[1]).min() > 1.0  # masked: 2^24 values to hit
        block.apply(seen.rows, seen.theta)
        seen_rows.append(seen.rows)
    assert sorted(np.concatenate(seen_rows)) == sorted([*range(40)] * 3)


def test_equations_give_products_and_offsets() -> None:
    rng = np.random.default_rng(0)
    features, offsets, objective = rng.normal(size=(6, 3)), rng.normal(size=6), make_objective("logistic", 0.01)
    block, equations = make_block(features, "sgd", objective, 0.3), Equations(6, objective, 0.3)
    for _ in range(40):
        rows, theta = rng.permutation(6)[:4], rng.normal(size=4)
        equations.add(rows, block.partials(rows) + offsets[rows], theta)
        block.apply(rows, theta)
    products, told = equations.solve(offset=True)
    np.testing.assert_allclose(products, features @ features.T, atol=1e-9)
    np.testing.assert_allclose(told, offsets, atol=1e-9)


def test_sums_of_known_weights_tell_their_values() -> None:
    sizes = ((2, 3), (4,))
    _, _, held = decoding.customers(sizes, rows=20)
    weights = [np.array([0.5, -0.25, 1.0, 3.0, -2.0]), np.array([0.1, 0.2, 0.4, 0.8])]
    sums = sum(decoding.one_hot(own, columns) @ w for own, columns, w in zip(held, sizes, weights, strict=True))
    found = decoding.decode_rows(sums, weights, sizes)
    assert decoding.right(found, held) == 1.0
    assert decoding.right([found[0], 3 - found[1]], held) < 1.0
    assert decoding.most_frequent([np.array([[0], [1], [1]]), np.array([[2], [2], [2]])]) == (2 / 3 + 1) / 2


def test_no_coalition_of_all_but_two_breaks_pairwise_masks() -> None:
    numbers = DEMONSTRATIONS["trees"]()
    assert numbers["pairwise masks: coalitions of 6, the dominator among them"] == 21
    assert numbers["pairwise masks: largest correlation with a partial"] < 6 / math.sqrt(1000)
    assert numbers["pairwise masks: of 21000 partials, those known to 1"] <= 1  # each by a chance of 2^-23


def test_the_attack_on_pairwise_masks_succeeds_where_the_last_key_is_known() -> None:
    """The attack works, so an attack without a result is not merely broken."""
    keys, values = pairwise_keys(4), np.array([1.5, -2.0])
    masked = RING.encode(values) + PairwiseMasks(1, 4, keys[1]).mask(leaks.KIND, 0, 0, 2)
    assert leaks.unmask(masked, 1, keys[1]).tolist() == [1.5, -2.0]
    assert np.abs(leaks.unmask(masked, 1, {**keys[1], 3: bytes(32)}) - values).min() > 1.0


def test_shares_hide_from_one_party_and_not_from_the_dealer() -> None:
    found = DEMONSTRATIONS["shares"]()
    assert abs(found["labels right, one party"] - 0.5) < 0.1
    assert found["labels right, with the dealer"] == 1.0
    for secret in ("scores", "features"):
        assert abs(found[f"correlation of {secret}, one party"]) < 0.2
        assert found[f"correlation of {secret}, with the dealer"] > 0.999
    largest = found["largest inner product"]
    assert found["error of inner products, with the dealer"] < largest / 1000
    assert found["error of inner products, one party"] > largest / 2


def test_the_command_prints_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    main(["trees", "intersection"])
    lines = capsys.readouterr().out.splitlines()
    assert "rows common to all                                          100" in lines
    assert sum(line.endswith("measured") for line in lines) == 2
    main(["float-masks"], as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == ["float-masks"]
    assert printed["float-masks"]["error of the sum, ring"] < 1e-11
    with refuses(typer.BadParameter, "got nothing, allowed: one or more of labels, label-cost, gram"):
        main(["nothing"])
