"""Caches of data sets and models in a process, so messages need not load or build them again.

Results do not depend on these caches: in a deployment a new process handles every message.
"""

import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import lru_cache
from logging import INFO

import torch
from flwr.common import log
from threadpoolctl import threadpool_limits

from apps.run_config.algorithm import Held, RunConfig
from apps.run_config.settings import LOCAL_NORMS
from clients.base import Site, Trained
from payloads.settings import TrainingSettings
from problems.augmentation import NONE, check_augmentation, make_augmentation
from problems.data import DataSpec, FederatedData, load
from problems.data.times import count_intervals
from problems.image_tensor import read_all
from problems.minimax import (
    AUC_SCORE,
    COMPOSITIONAL_AUC,
    SADDLES,
    SYNTHETIC_PL,
    AUCOracle,
    CompositionalOracle,
    FindingsAUCOracle,
    FindingsCompositionalOracle,
    FunctionOracle,
    Oracle,
    SyntheticPL,
    SyntheticPLOracle,
    build_problem,
)
from problems.models import FlatModel, ModelError, build_model, freeze
from problems.models.networks import HazardNetwork, SaddleNetwork
from problems.objectives.classification import SOFTMAX
from problems.objectives.hazard import HAZARD, START
from problems.objectives.scores import score_of

FP16 = "fp16"
# the type of the layers' computations for each value of ``precision``; None: the run's number type
PRECISIONS = {"full": None, "bf16": torch.bfloat16, FP16: torch.float16}
_load_lock = threading.Lock()
_skeletons = threading.local()
_generator_lock = threading.RLock()


def device_of(training: TrainingSettings) -> torch.device:
    """Return the device of a run. "auto" is CUDA if it is available.

    Raises:
        ValueError: The run asks for CUDA, which is not available.
    """
    if training.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: remove device (got 'cuda', but PyTorch sees no CUDA device here; allowed: auto, cpu)")
    wanted = "cuda" if training.device == "auto" and torch.cuda.is_available() else training.device
    return torch.device("cpu" if wanted == "auto" else wanted)


def check_precision(config: RunConfig) -> None:
    """Check that sites can train in float16.

    Raises:
        ModelError: The run asks for float16, and the device is a CPU.
    """
    if config.run.precision == FP16 and device_of(config.training).type == "cpu":
        allowed = "'full' or 'bf16' on a CPU"
        raise ModelError("precision", got=f"{FP16!r}", allowed=allowed, hint="set precision to 'bf16'")


def dtype_of(training: TrainingSettings) -> torch.dtype:
    """Return the number type of a run."""
    return torch.float64 if training.dtype == "float64" else torch.float32


def hold_threads(training: TrainingSettings) -> None:
    """Limit PyTorch, and NumPy's BLAS (used by linear models), to ``torch-threads`` threads in this process."""
    torch.set_num_threads(training.torch_threads)
    _hold_blas(training.torch_threads)


@lru_cache(maxsize=1)  # the call scans all libraries of the process, so it is made only for a new number
def _hold_blas(threads: int) -> None:
    threadpool_limits(threads, user_api="blas")


# data sets that another process has read
_adopted: dict[tuple[DataSpec, int], FederatedData] = {}


@lru_cache(maxsize=4)
def _federated_data(spec: DataSpec, num_clients: int) -> FederatedData:
    if adopted := _adopted.get((spec, num_clients)):
        return adopted
    data = load(spec, num_clients)
    for note in data.notes:
        log(INFO, "%s", note)
    return data


def adopt(spec: DataSpec, num_clients: int, data: FederatedData) -> None:
    """Use a data set that another process has read, instead of reading it here.

    Args:
        spec: The run's keys of the data.
        num_clients: The number of clients.
        data: The data set. Its arrays may be read-only.
    """
    _federated_data.cache_clear()
    _adopted[spec, num_clients] = data


def disown() -> None:
    """Forget the data sets from `adopt`, and the sites that have their rows."""
    _adopted.clear()
    _federated_data.cache_clear()
    _site.cache_clear()
    _augment_site.cache_clear()


def federated_data(spec: DataSpec, num_clients: int) -> FederatedData:
    """Return the data set split over the clients, loaded once per process.

    Raises:
        DataError: The data set cannot be loaded, or cannot be split in this way.
    """
    with _load_lock:
        return _federated_data(spec, num_clients)


@lru_cache(maxsize=2**18)
def _site(spec: DataSpec, num_clients: int, partition_id: int, dtype: torch.dtype, device: torch.device) -> Site:
    samples = _federated_data(spec, num_clients).client(partition_id)
    return Site.of_samples(partition_id, samples, dtype, device)


def site(config: RunConfig, num_clients: int, partition_id: int) -> Site:
    """Return a client's rows of the run's data set as tensors on the run's device. They stay in the cache.

    Raises:
        DataError: The data set cannot be loaded, or cannot be split in this way.
        ValueError: The run asks for CUDA, which is not available.
    """
    with _load_lock:
        return _site(config.data, num_clients, partition_id, dtype_of(config.training), device_of(config.training))


@lru_cache(maxsize=65536)
def _augment_site(site: Site, name: str, seed: int, private: bool) -> Site:
    check_augmentation(name, tuple(site.features.shape[1:]), private=private)
    return replace(site, augmentation=make_augmentation(name, seed, site.partition_id, len(site)))


def augment_site(config: RunConfig, site: Site) -> Site:
    """Return a site whose training batches are augmented as the run config requires.

    Raises:
        AugmentError: The site's samples cannot be augmented as the run config requires.
    """
    if config.run.augment == NONE:
        return site
    return _augment_site(site, config.run.augment, config.training.seed, config.privacy.epsilon > 0)


def skeleton(config: RunConfig, input_shape: tuple[int, ...], role: str = "") -> FlatModel:
    """Return a cached model, one per thread and role. Its weights are arbitrary: the caller must load weights.

    Args:
        config: The run config.
        input_shape: The shape of a sample.
        role: The role of the model, if a client needs several models at the same time: "inner", or "" for the model
            itself.
    """
    training = config.training
    further = training.loss in SADDLES, training.loss == SOFTMAX, _count_baselines(config), config.data.num_labels
    run = config.run
    kind = run.model, run.frozen, run.batch_norm, run.precision, run.accumulate
    key = (kind, further, input_shape, training.dtype, device_of(training), role)
    cache: dict[object, FlatModel] = _skeletons.__dict__.setdefault("models", {})
    if key not in cache:
        cache[key] = new_model(config, input_shape)
    return cache[key]


def turn(model: Trained, site: Held | None = None) -> AbstractContextManager[object]:
    """Return the lock for a client's training, which lets clients that draw random numbers train one at a time.

    Random generators belong to the process. With dropout, or with a user's own module or augmentation that draws, the
    results would otherwise depend on the order of the threads.

    Args:
        model: The client's model.
        site: The client's data. None: data without augmentation.
    """
    augmentation = site.augmentation if isinstance(site, Site) else None
    draws = model.stochastic or (augmentation is not None and augmentation.draws)
    return _generator_lock if draws else nullcontext()


def new_model(config: RunConfig, input_shape: tuple[int, ...]) -> FlatModel:
    """Return a model with the run's seeded initial weights. For minimax AUC losses it also has their scalars, and
    for hazards the baselines.

    Raises:
        ModelError: The run config's model cannot be built for samples of this shape, cannot be frozen as the run config
            requires, or cannot keep samples private.
        AugmentError: Samples of this shape cannot be augmented as the run config requires.
    """
    training = config.training
    check_augmentation(config.run.augment, input_shape, private=config.privacy.epsilon > 0)
    with _generator_lock:  # drawing the weights forks the generators, which a training client may be using
        outputs = config.data.num_labels
        exclusive = training.loss == SOFTMAX
        module = build_model(config.run.model, input_shape, training.seed, outputs, exclusive=exclusive)
    freeze(module, config.run.frozen, norms=config.run.batch_norm == "frozen")
    if training.loss in SADDLES:
        module = SaddleNetwork(module, outputs)
    elif baselines := _count_baselines(config):
        module = HazardNetwork(module, baselines, START)
    run, name, parts = config.run, config.run.precision, config.run.accumulate
    precision = PRECISIONS[name]
    dtype, device = dtype_of(training), device_of(training)
    model = FlatModel(module, dtype=dtype, device=device, outputs=outputs, precision=precision, parts=parts)
    model.keeps_norms = run.batch_norm == LOCAL_NORMS
    if model.keeps_norms and not model.norm_names:
        got, allowed = f"{LOCAL_NORMS!r} for a model without trained batch norms", "'averaged'"
        raise ModelError("batch-norm", got=got, allowed=allowed, hint="remove batch-norm")
    if precision is not None and (model.dense is not None or model.dtype == torch.float64 or config.privacy.epsilon):
        allowed = "'full' with linear and mlp, with dtype 'float64' and with privacy.epsilon"
        raise ModelError("precision", got=repr(name), allowed=allowed, hint="remove precision")
    if name == FP16 and training.loss == COMPOSITIONAL_AUC:
        allowed = f"'bf16' with loss {training.loss!r}, whose second derivatives have no loss scaling"
        raise ModelError("precision", got=repr(name), allowed=allowed, hint="set precision to 'bf16'")
    if parts > 1 and (model.dense is not None or training.loss == COMPOSITIONAL_AUC or config.privacy.epsilon):
        allowed = f"1 with linear and mlp, with loss {COMPOSITIONAL_AUC!r} and with privacy.epsilon"
        raise ModelError("accumulate", got=parts, allowed=allowed, hint="remove accumulate")
    if config.privacy.epsilon:
        model.check_records()
    return model


def _count_baselines(config: RunConfig) -> int:
    """Return the number of hazards' baselines in the model; 0 with another loss."""
    return count_intervals(config.data) if config.training.loss == HAZARD else 0


def is_problem(config: RunConfig) -> bool:
    """Return whether the loss is a synthetic or user-defined minimax problem, which needs no network."""
    return config.training.loss == SYNTHETIC_PL or ":" in config.training.loss


def own_problem(config: RunConfig, features: torch.Tensor, labels: torch.Tensor) -> FunctionOracle:
    """Return the oracle (values and gradients) of a minimax problem (see `is_problem`) on samples.

    Raises:
        ProblemError: The user's problem cannot be used.
    """
    loss = config.training.loss
    if loss == SYNTHETIC_PL and features.device.type == "cpu":
        return SyntheticPLOracle(SyntheticPL(features))
    problem = SyntheticPL(features) if loss == SYNTHETIC_PL else build_problem(loss, features, labels)
    return FunctionOracle(problem, dtype=dtype_of(config.training), device=device_of(config.training))


@lru_cache(maxsize=65536)
def _resident_problem(config: RunConfig, site: Site) -> Oracle:
    return own_problem(config, read_all(site.features), site.labels)


def get_trainee(config: RunConfig, site: Site) -> FlatModel | Oracle:
    """Return the object that a client of this site trains: the cached model, or the oracle of a minimax problem.

    Raises:
        ModelError: The run config's model cannot be built.
        ProblemError: The user's minimax problem cannot be used.
    """
    if is_problem(config):
        return _resident_problem(config, site)
    shape, loss = tuple(site.features.shape[1:]), config.training.loss
    score = score_of(config.training.score, AUC_SCORE)
    model = skeleton(config, shape)
    if loss == COMPOSITIONAL_AUC:
        inner = skeleton(config, shape, "inner")
        if site.findings is not None:
            oracle: AUCOracle = FindingsCompositionalOracle(model, inner, site.features, site.findings, score=score)
        else:
            oracle = CompositionalOracle(model, inner, site.features, site.labels, score=score)
    elif loss in SADDLES and site.findings is not None:
        oracle = FindingsAUCOracle(model, site.features, site.findings, score=score)
    elif loss in SADDLES:
        oracle = AUCOracle(model, site.features, site.labels, score=score)
    else:
        return model
    oracle.augmentation = site.augmentation
    return oracle
