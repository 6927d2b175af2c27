"""Flower's mods around the ClientApp and its differential-privacy wrappers around the strategies.

They run in Flower's own `start()`. The tests check their effect on an algorithm of each family, and which are refused.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, arrays_size_mod, fixedclipping_mod, message_size_mod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Result,
    Strategy,
)
from scipy import stats

from apps import client_app
from apps.config import Scalar, parse_run_config
from apps.mods import Mod, make_client_app
from apps.registry import ALGORITHMS
from payloads.wire import PAYLOAD, model_arrays, model_record
from strategies.rounds.errors import StrategyError
from tests.battery.federation import SMALL, Exchange, Wiretap, model_of, serve
from tests.refusals import refuses

SITES = 3
CLIP = 0.01  # less than the norm of every update here
NOISE = 0.5
COUNT_NOISE = 0.3  # the adaptive wrappers' noise on the number of clipped updates
# one algorithm of each family that works with mods of the model
FAMILIES = ["local-sgd", "fedx2", "local-scgdam", "fedsgda-storm", "scaffold", "fedmid"]
OF_MODEL = [LocalDpMod(CLIP, 0.0, 1.0, 1e-5), fixedclipping_mod, adaptiveclipping_mod]
Wrap = Callable[[Strategy], Strategy]


def count_noise(noise: float) -> dict[str, float | None]:
    return {"clipped_count_stddev": COUNT_NOISE if noise else None}


def server_fixed(noise: float) -> Wrap:
    return lambda strategy: DifferentialPrivacyServerSideFixedClipping(strategy, noise, CLIP, SITES)


def server_adaptive(noise: float) -> Wrap:
    kind = DifferentialPrivacyServerSideAdaptiveClipping
    return lambda strategy: kind(strategy, noise, SITES, CLIP, **count_noise(noise))


def client_fixed(noise: float) -> Wrap:
    return lambda strategy: DifferentialPrivacyClientSideFixedClipping(strategy, noise, CLIP, SITES)


def client_adaptive(noise: float) -> Wrap:
    kind = DifferentialPrivacyClientSideAdaptiveClipping
    return lambda strategy: kind(strategy, noise, SITES, CLIP, **count_noise(noise))


WRAPPERS = {
    "server-fixed": (server_fixed, ()),
    "server-adaptive": (server_adaptive, ()),
    "client-fixed": (client_fixed, (fixedclipping_mod,)),
    "client-adaptive": (client_adaptive, (adaptiveclipping_mod,)),
}


@dataclass(frozen=True)
class Outcome:
    """A finished run: Flower's result, the initial model, and the messages."""

    result: Result
    start: np.ndarray
    tap: Wiretap

    @property
    def model(self) -> np.ndarray:
        return model_arrays(self.result.arrays)[0]

    def exchanges(self, server_round: int) -> list[Exchange]:
        """Return the round's main exchanges, in order of partition id."""
        return [each for each in self.tap.exchanges if each.server_round == server_round and not each.phase]

    def updates(self, server_round: int = 1) -> list[np.ndarray]:
        """Return each client's update of the model, as the server received it."""
        return [model_of(each.reply)[0] - model_of(each.message)[0] for each in self.exchanges(server_round)]

    def payloads(self) -> list[dict[str, Any]]:
        """Return the payload of each client in round 1."""
        return [dict(each.reply.content.config_records.get(PAYLOAD, {})) for each in self.exchanges(1)]


def run(
    strategy: str, app: ClientApp = client_app.app, wrap: Wrap = lambda strategy: strategy, rounds: int = 2
) -> Outcome:
    """Run Flower's `start()` in another ServerApp."""
    flat: dict[str, Scalar] = {**SMALL, "dtype": "float64", "learning-rate": 0.05, "strategy": strategy}
    outcome: list[tuple[Result, np.ndarray]] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        settings = parse_run_config(context.run_config)
        evaluator = settings.algorithm.evaluation(settings, SITES)
        ours = ALGORITHMS[strategy].strategy(settings.training, settings.family)
        ours.layout = evaluator.layout
        initial = evaluator.start()
        result = wrap(ours).start(grid, initial_arrays=model_record(initial), num_rounds=rounds, timeout=60.0)
        outcome.append((result, np.array(initial[0])))

    tap = Wiretap(app, SITES, flat)
    serve(tap, server, flat)
    ((result, start),) = outcome
    return Outcome(result, start, tap)


def clipped(update: np.ndarray) -> np.ndarray:
    return update * min(1.0, CLIP / np.linalg.norm(update))


def assert_normal(values: np.ndarray, deviation: float) -> None:
    assert stats.kstest(values / deviation, "norm").pvalue > 1e-6


# Mods.


@pytest.mark.parametrize("strategy", [*FAMILIES, "composite", "vfb2-sgd"])
def test_the_size_mods_report_every_message_and_change_nothing(strategy: str, caplog: pytest.LogCaptureFixture) -> None:
    plain = run(strategy)
    with caplog.at_level(logging.INFO, "flwr"):
        sized = run(strategy, make_client_app(message_size_mod, arrays_size_mod))
    np.testing.assert_array_equal(sized.model, plain.model)
    for what, side in (("Incoming", "message"), ("Outgoing", "reply")):
        told = [int(r.args[0]) for r in caplog.records if r.getMessage().startswith(f"{what} message size")]
        wire = [getattr(each, side).content for each in sized.tap.exchanges]
        assert sorted(told) == sorted(sum(record.count_bytes() for record in records.values()) for records in wire)
    assert any("Total array elements sent" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("strategy", FAMILIES)
def test_local_dp_clips_and_noises_the_model_and_nothing_else(strategy: str) -> None:
    plain = run(strategy, rounds=1)
    only_clipped = run(strategy, make_client_app(LocalDpMod(CLIP, 0.0, 1.0, 1e-5)), rounds=1)
    noised = run(strategy, make_client_app(LocalDpMod(CLIP, NOISE, 1.0, 1e-5)), rounds=1)
    assert min(np.linalg.norm(update) for update in plain.updates()) > CLIP
    for update, got in zip(plain.updates(), only_clipped.updates(), strict=True):
        np.testing.assert_allclose(got, clipped(update), atol=1e-12)
    noise = np.concatenate(noised.updates()) - np.concatenate(only_clipped.updates())
    assert_normal(noise, NOISE * np.sqrt(2 * np.log(1.25 / 1e-5)))
    assert only_clipped.payloads() == noised.payloads() == plain.payloads()
    # the server accepts the replies
    mean = np.mean([model_of(each.reply)[0] for each in noised.exchanges(1)], axis=0)
    if strategy != "fedmid":  # its server takes a prox of the mean
        np.testing.assert_allclose(noised.model, mean, atol=1e-12)


# Wrappers.


@pytest.mark.parametrize("noise", [0.0, NOISE])
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("strategy", [name for name in FAMILIES if name != "fedmid"])
def test_a_wrapper_clips_every_update_and_noises_the_mean(strategy: str, wrapper: str, noise: float) -> None:
    wrap, mods = WRAPPERS[wrapper]
    plain, wrapped = run(strategy, rounds=1), run(strategy, make_client_app(*mods), wrap(noise), rounds=1)
    assert wrapped.payloads() == plain.payloads()
    updates = [clipped(update) for update in plain.updates()]
    # a server-side wrapper writes into the replies
    np.testing.assert_allclose(wrapped.updates(), updates, atol=1e-12)
    begin = model_of(plain.exchanges(1)[0].message)[0]
    added = wrapped.model - (begin + np.mean(updates, axis=0))
    if not noise:
        np.testing.assert_allclose(added, 0.0, atol=1e-12)
        return
    multiplier, norm = noise, CLIP
    if "adaptive" in wrapper:  # part of the noise is on the count, and the norm is already the next round's
        multiplier, norm = (noise**-2 - (2 * COUNT_NOISE) ** -2) ** -0.5, CLIP * np.exp(-0.2 * 0.5)
    assert 0.6 < np.std(added) / (multiplier * norm / SITES) < 1.6
    assert_normal(added, np.std(added))


# Errors.


@pytest.mark.parametrize("mod", OF_MODEL, ids=["local-dp", "fixed", "adaptive"])
@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        ("composite", "composite's clients compute their corrections"),
        ("fedcanon", "fedcanon's server computes the control variate"),
        ("vfb2-sgd", "a vertical run sends no model"),
    ],
)
def test_a_mod_of_the_model_is_refused_in_the_handshake(strategy: str, reason: str, mod: Mod) -> None:
    for wrap in (lambda strategy: strategy, client_fixed(NOISE)):
        with pytest.raises(StrategyError, match=reason):
            run(strategy, make_client_app(message_size_mod, mod), wrap)


@pytest.mark.parametrize("strategy", ["composite", "newton", "vfb2-sgd"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_is_refused_before_any_message(wrapper: str, strategy: str) -> None:
    wrap, _ = WRAPPERS[wrapper]
    name = ALGORITHMS[strategy].strategy.__name__
    with refuses(
        StrategyError, f"wrapper: got {name} inside DifferentialPrivacy.*remove the wrapper, or wrap LocalSGD"
    ):
        run(strategy, wrap=wrap(0.0))


def test_composite_refuses_a_noised_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DifferentialPrivacyServerSideFixedClipping, "summary", lambda self: None)
    with refuses(StrategyError, "round 2: the model: got a model that differs from the last round"):
        run("composite", wrap=server_fixed(NOISE))
