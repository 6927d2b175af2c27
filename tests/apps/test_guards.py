"""The chain of guards around a site's work: its order, and the values that leave the site."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from apps.client_app import take_part
from apps.config import Scalar
from apps.guards import chain
from apps.guards.guard import Proceed, SiteGuard, Steps
from apps.guards.sample_privacy import SPENT
from apps.guards.work import Answer, Request, Work
from apps.run_config.algorithm import HANDSHAKE
from payloads.secure_sum import Present
from payloads.wire import ARRAYS, CONFIG, PHASE, PRESENT, ROUND
from simulations.engines.grid import task_identity
from tests.battery.federation import federate

KINDS = ("query", "train", "evaluate")
ORDER = [
    "ErrorGuard",
    "PolicyGuard",
    "AuditGuard",
    "FormGuard",
    "LedgerGuard",
    "SumGuard",
    "MemoryGuard",
    "SampleGuard",
]
SMALL: dict[str, Scalar] = {"strategy": "scaffold", "dataset": "breast-cancer", "num-server-rounds": 2}
BUDGET: dict[str, Scalar] = {**SMALL, "strategy": "local-sgd", "privacy.epsilon": 2.0, "privacy.delta": 1e-4}


class Asked:
    """A site of a finished run; calling it returns the work for a further message."""

    def __init__(self, path: Path, config: dict[str, Scalar]) -> None:
        _, self.grid = federate(path, config)

    def __call__(self, kind: str, *, present: bool = False, **config: Scalar) -> Work:
        asked = next(one.message for one in reversed(self.grid.exchanges) if ARRAYS in one.message.content)
        scalars = {ROUND: 2, **{key.replace("_", "-"): value for key, value in config.items()}}
        records = RecordDict({CONFIG: ConfigRecord(scalars)})
        if kind != "query":
            records[ARRAYS] = asked.content[ARRAYS]
        if present:
            records[PRESENT] = Present(clients=np.arange(3)).to_record()
        with task_identity():
            message = Message(records, dst_node_id=asked.metadata.dst_node_id, message_type=kind)
        return Work.of(message, self.grid._contexts[asked.metadata.dst_node_id])


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """A site of a run without a budget and without secure sums."""
    return Asked(tmp_path_factory.mktemp("guards") / "run", SMALL)


class Watched(SiteGuard):
    """A guard that notes each incoming message and each outgoing answer, and may refuse either.

    Args:
        name: The name in the notes.
        notes: The notes.
        refuses: "in", "out" or "".
    """

    def __init__(self, name: str, notes: list[str], refuses: str = "") -> None:
        self.name, self.notes, self.refuses = name, notes, refuses

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        self.note("in")
        answer = yield from proceed(work)
        self.note("out")
        return answer

    def note(self, way: str) -> None:
        self.notes.append(f"{self.name} {way}")
        if way == self.refuses:
            raise PermissionError(f"{self.name} refuses")


def watch(monkeypatch: pytest.MonkeyPatch, notes: list[str], refusing: int = -1, way: str = "") -> None:
    """Surround each guard by a guard that takes notes; the guard at ``refusing`` refuses."""
    guards: list[SiteGuard] = []
    for place, guard in enumerate(chain.GUARDS):
        guards += [guard, Watched(ORDER[place], notes, way if place == refusing else "")]
    monkeypatch.setattr(chain, "GUARDS", tuple(guards))


def answer_at_once(notes: list[str]) -> Proceed:
    def do(work: Work) -> Steps:
        yield from ()
        notes.append("work")
        return Answer(metrics={"secret": 1})

    return do


def test_the_order_of_the_guards() -> None:
    """`chain.GUARDS` explains each position."""
    assert [type(guard).__name__ for guard in chain.GUARDS] == ORDER


@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_passes_every_guard(kind: str, ask: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    watch(monkeypatch, notes)
    chain.run(ask(kind), answer_at_once(notes))
    inwards, outwards = [f"{name} in" for name in ORDER], [f"{name} out" for name in reversed(ORDER)]
    assert notes == [*inwards, "work", *outwards]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["in", "out"])
@pytest.mark.parametrize("place", range(len(ORDER)))
def test_each_guard_alone_can_refuse(
    place: int, way: str, kind: str, ask: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    watch(monkeypatch, notes, place, way)
    with pytest.raises(PermissionError, match=f"{ORDER[place]} refuses"):
        chain.run(ask(kind), answer_at_once(notes))
    assert ("work" in notes) == (way == "out")
    assert notes[-1] == f"{ORDER[place]} {way}"


@pytest.mark.parametrize("stack", [1, 3])
def test_clients_that_train_together_pass_every_guard_too(
    stack: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    watch(monkeypatch, notes)
    federate(tmp_path / "run", {"strategy": "scaffold", "num-server-rounds": 2}, stack=stack)
    # three handshakes, and three steps in each of two rounds
    assert {note: notes.count(note) for note in notes} == {
        f"{name} {way}": 9 for name in ORDER for way in ("in", "out")
    }


def test_a_budget_is_spent_also_if_the_client_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Asked(tmp_path / "run", {**BUDGET, "num-server-rounds": 1})
    work = site("train")
    spent = dict(work.context.state.config_records[SPENT])
    spent["batches"] -= 2  # type: ignore[operator]
    work.context.state[SPENT] = ConfigRecord(spent)
    fit = work.client.fit

    def fail(*asked: Any) -> Any:
        fit(*asked)
        raise RuntimeError("out of memory")

    work.client.fit = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="out of memory"):
        chain.run(work, take_part)
    assert work.context.state.config_records[SPENT]["batches"] == spent["batches"] + 2  # type: ignore[operator]


def test_a_refused_message_spends_no_budget(tmp_path: Path) -> None:
    site = Asked(tmp_path / "run", {**BUDGET, "num-server-rounds": 1})
    work = site("train", present=True)
    before = dict(work.context.state.config_records[SPENT])
    with pytest.raises(ValueError, match="a term of a secure sum in a run with privacy.secure-sum=false"):
        chain.run(work, take_part)
    assert dict(work.context.state.config_records[SPENT]) == before


def test_a_feigned_sum_is_refused(ask: Asked) -> None:
    """A site would add less noise to a histogram that is a term of a sum."""
    with pytest.raises(ValueError, match="a term of a secure sum in a run with privacy.secure-sum=false"):
        chain.run(ask("train", present=True), answer_at_once([]))


def test_no_loss_leaves_beside_a_term_of_a_sum(tmp_path: Path) -> None:
    site = Asked(tmp_path / "run", {**SMALL, "privacy.secure-sum": True, "num-server-rounds": 1})
    with pytest.raises(ValueError, match="values outside a secure sum"):
        chain.run(site("evaluate", present=True), answer_at_once([]))


def test_a_handshake_is_logged_as_one() -> None:
    records = RecordDict({CONFIG: ConfigRecord({PHASE: "segment"})})
    assert Request(records, "query").event == HANDSHAKE
