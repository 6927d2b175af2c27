"""The ClientApp: a site's work for each of Flower's messages.

The work runs inside the site's guards (`apps.guards`), which refuse messages and change answers to protect its data.
"""

import platform
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from apps.evaluation.sets import sets_of
from apps.guards.chain import run
from apps.guards.guard import Steps
from apps.guards.work import Answer, Request, Work, decode, report_of, site_of
from apps.sites import resources
from apps.sites.files import write_tensors
from apps.sites.fingerprints import add_fingerprint
from apps.sites.state_store import base_folder, client_folder
from clients.base import Site
from clients.finding_counts import count_findings
from clients.fine_tuning import fine_tune
from clients.held_out import measure_errors, score
from clients.local_norms import put_norms
from clients.set_counts import count_sets
from clients.time_counts import count_times
from payloads.flower_internals import drop_log_colors
from payloads.handshake import REFUSAL
from payloads.held_out import (
    COLUMN,
    OF_FINDINGS,
    OF_SETS,
    OF_TIMES,
    OF_TUNED,
    FindingEdges,
    ScoreCounts,
    ScoreEdges,
    SetCounts,
)
from payloads.record import FloatArray, Payload
from payloads.wire import NUM_EXAMPLES, PHASE, ROUND, RUN_TOKEN, content
from problems.files import make_folder
from problems.models import FlatModel
from problems.models.networks import network_names

# the files of a site's model with its own batch norms, and of its fine-tuned model, beside its memory
OWN_MODEL, TUNED_MODEL = "model.safetensors", "fine-tuned.safetensors"
app = ClientApp()
drop_log_colors()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Answer the handshake.

    Returns:
        The site's report, its device and the versions of its libraries. If the site cannot take part, only the reason,
        under the key `REFUSAL`.
    """
    try:
        return _reply(run(Work.of(message, context), introduce), message)
    except (ValueError, OSError) as error:
        return _refuse(error, message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Call the client's ``fit`` once, and keep its memory.

    Returns:
        The client's model, payload and metrics. If a party of a vertical run refuses, only the reason, under the key
        `REFUSAL`. Flower itself reports other errors.
    """
    work = Work.of(message, context)
    try:
        return _reply(run(work, take_part), message)
    except work.run.algorithm.sites.refusals as error:
        return _refuse(error, message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure a model on this site's rows.

    Returns:
        The result of the client's ``evaluate``. If the message names a phase (an additional exchange), the histogram of
        the held-out rows' scores instead.
    """
    return _reply(run(Work.of(message, context), measure), message)


def _reply(answer: Answer, message: Message) -> Message:
    return Message(answer.to_records(), reply_to=message)


def _refuse(error: Exception, message: Message) -> Message:
    return Message(content(config=ConfigRecord({REFUSAL: str(error)})), reply_to=message)


# The work itself, as generators that the guards surround; see `apps.guards.guard`.


def introduce(work: Work) -> Steps:
    """Answer the handshake."""
    yield from ()
    report = report_of(work.context, work.run)
    report = add_fingerprint(report, work.run, work.node, work.request.local)
    resources.check_precision(work.run)
    device = resources.device_of(work.run.training).type
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    return Answer(payload=report, config={"device": device, **versions})


def take_part(work: Work) -> Steps:
    """Let the client answer a round's main exchange, or an additional exchange of the round (a phase)."""
    client, sites, config = work.client, work.run.algorithm.sites, work.request.config
    client.summed = work.summed
    sites.begin(client, work.facts)
    arrays, num_examples, metrics = yield
    sites.end(client, work.context, config, work.request.local)
    scalars: dict[str, Any] = {NUM_EXAMPLES: num_examples, ROUND: int(config[ROUND]), **metrics}
    return Answer(arrays=arrays, payload=client.outbox, metrics=scalars)


def measure(work: Work) -> Steps:
    """Let the client evaluate. If the message names a phase, count the held-out rows by score instead."""
    yield from ()
    request = work.request
    if PHASE not in request.config:
        loss, num_examples, metrics = work.client.evaluate(request.parameters, request.config)
        return Answer(metrics={NUM_EXAMPLES: num_examples, "loss": loss, **metrics})
    site = site_of(work.context, work.run, request.scaling)
    assert isinstance(site, Site)
    phase, summed = str(request.config[PHASE]), work.summed > 1
    model, parameters = resources.skeleton(work.run, tuple(site.features.shape[1:])), request.parameters
    if model.keeps_norms:
        parameters = put_norms(model, parameters, work.client.state)
        if request.config[ROUND] == work.run.training.num_server_rounds:
            save_own_model(work, model, parameters, OWN_MODEL)
    if phase in OF_TUNED:
        parameters = tune(work, model, site)
    if phase in OF_TIMES:
        timed, diverged = count_times(model, parameters, site, phase, summed=summed)
        return _answer(timed, int(timed.counts.sum()), request, diverged)
    if phase in OF_FINDINGS:
        question = None if request.extras is None else decode(FindingEdges, request.extras, 0).check_order()
        found, altered = count_findings(model, parameters, site, question, phase, summed=summed)
        return _answer(found, int(found.negatives.sum() + found.positives.sum()), request, altered)
    edges = None if request.extras is None else decode(ScoreEdges, request.extras, 0).check_order()
    if site.numeric:
        sums, replaced = measure_errors(model, parameters, site, work.run.training.loss, phase, summed=summed)
        return _answer(sums, int(sums.sums[0]), request, replaced)
    counts: ScoreCounts | SetCounts
    if phase in OF_SETS:
        sets, seed = sets_of(work.run, phase, request.config.get(COLUMN)), work.run.training.seed
        column = int(request.config[COLUMN])
        counts, diverged = count_sets(
            model, parameters, site, edges, phase, column, sets=sets, seed=seed, summed=summed
        )
    else:
        counts, diverged = score(model, parameters, site, edges, phase, summed=summed)
    return _answer(counts, int(counts.negatives.sum() + counts.positives.sum()), request, diverged)


def tune(work: Work, model: FlatModel, site: Site) -> list[FloatArray]:
    """Fine-tune the request's model on the site's rows, and save the result at the site.

    Raises:
        ValueError: The run config does not ask for fine-tuning.
    """
    steps, config = work.run.evaluation.fine_tune_steps, work.request.config
    if not steps:
        raise ValueError("the server requested a fine-tuned model in a run with fine-tune-steps=0")
    # a client would take the question about scores for its own record
    state, parameters = work.client.state if model.keeps_norms else None, work.request.parameters
    with resources.turn(model, site):
        tuned = fine_tune(model, parameters, site, work.run.training, steps, int(config[ROUND]), state)
    save_own_model(work, model, tuned, TUNED_MODEL)
    return tuned


def save_own_model(work: Work, model: FlatModel, parameters: list[FloatArray], file: str) -> None:
    """Save the site's own model, if the run stores clients' files on this disk.

    Args:
        work: The request to evaluate.
        model: The network.
        parameters: The flat arrays of the site's model.
        file: The file's name.
    """
    config, names = work.request.config, network_names(model.module)
    base = base_folder(work.node, work.request.local)
    if base is not None and RUN_TOKEN in config:
        folder = client_folder(base, str(config[RUN_TOKEN]), work.partition)
        make_folder(folder, private=True)
        arrays = {names[name]: value for name, value in model.name_arrays(parameters).items()}
        write_tensors(folder / file, arrays, {"format": "pt"}, private=True)


def _answer(payload: Payload, rows: int, request: Request, altered: bool) -> Answer:
    """Return the answer with sums or counts of held-out rows."""
    return Answer(payload=payload, metrics={NUM_EXAMPLES: rows, ROUND: request.config[ROUND]}, altered=altered)
