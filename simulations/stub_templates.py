"""The templates of a new algorithm's stubs: what `simulations.stubs` fills in. A module, as `page_template` is."""

_PAYLOAD = r'''"""{{ prefix }}'s settings and records.

{{ mark }} authors, "title", venue and year, the number of the algorithm, and the paper's letters on the left.

| paper | here |
|---|---|
| {{ mark }} | the message's model |
{% for setting in settings %}
| {{ mark }} | ``{{ setting.field }}`` of `{{ prefix }}Settings` |
{% endfor %}
{% for record in records %}
{% for field in record.fields %}
| {{ mark }} | ``{{ field }}`` of `{{ record.name }}` |
{% endfor %}
{% endfor %}
"""

from __future__ import annotations
{% if records %}

import dataclasses
{% endif %}
{% if settings %}

from pydantic import Field
{% endif %}
{% if imports %}

{{ imports }}
{% endif %}
{% if settings %}


class {{ prefix }}Settings(Settings):
    """Hyper-parameters of {{ prefix }} (table ``{{ table }}``)."""

{% for setting in settings %}
{% if loop.first %}
    # {{ mark }} the bounds (gt, ge, lt, le), and what is allowed in words: a refusal says so
{% endif %}
    {{ setting.field }}: {{ setting.type }} = Field({{ setting.python }}, description="{{ setting.allowed }}")
{% endfor %}
{% endif %}
{% for record in records %}


@dataclasses.dataclass(frozen=True, eq=False)
class {{ record.name }}(Payload):
    """{{ record.role }}"""

{% for field in record.fields %}
    {{ field }}: FloatArray = array("d")
{% endfor %}
{% endfor %}
'''

_CLIENT = r'''"""{{ prefix }}'s client half. {{ mark }} the paper."""

from __future__ import annotations

from flwr.common import Scalar

{{ imports }}


class {{ prefix }}Client(SampleLossClient):
    """{{ mark }} what a client does in a round, the update on a line of its own."""

{% if down %}
    down = {{ prefix }}Down
{% endif %}
{% if up %}
    up = {{ prefix }}Up
{% endif %}
{% if memory %}
    memory = {{ prefix }}Memory
{% endif %}
{% if default_loss %}
    default_loss = {{ default_loss }}
{% endif %}
{% if settings %}
    settings_type = {{ prefix }}Settings
    settings: {{ prefix }}Settings
{% endif %}
{% if down or up or memory or default_loss or settings %}

{% endif %}
    def fit(
        self, parameters: list[FloatArray], config: dict[str, Scalar]
    ) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        server_round = self.begin(parameters, config)
{% if down %}
        # self.inbox is what the server sent, a {{ prefix }}Down, or None where it sent nothing.
{% endif %}
{% if memory %}
        # self.state is what it kept, a {{ prefix }}Memory, None at its first visit; set it anew.
{% endif %}
        # for step, batch in self.steps(server_round):
        #     self.model.parameters.add_(self.gradient(batch), alpha=-step)
{% if up %}
        # self.outbox = {{ prefix }}Up(...)
{% endif %}
        # return self.fitted()
        raise NotImplementedError(f"fit of round {server_round}: fill in the local steps")
'''

_STRATEGY = r'''"""{{ prefix }}'s server half. {{ mark }} the paper."""

from __future__ import annotations

{{ imports }}


class {{ prefix }}(PayloadStrategy):
    """{{ mark }} what the server does with a round's replies, the update on a line of its own."""

{% if down %}
    down_type = {{ prefix }}Down
{% endif %}
{% if up %}
    up_type = {{ prefix }}Up
{% endif %}
{% if state %}
    state_type = {{ prefix }}State
{% endif %}
{% if settings %}
    settings_type = {{ prefix }}Settings
    settings: {{ prefix }}Settings
{% endif %}
{% if state %}
    # what the server keeps, None before round 1
    state: {{ prefix }}State | None
{% endif %}
{% if down or up or state or settings %}

{% endif %}
    def meet(self, roster: Roster) -> None:
        self.check_samples(roster)

{% if down %}
    def down(self, server_round: int) -> {{ prefix }}Down | None:
        # return {{ prefix }}Down(...), or None to send nothing
        raise NotImplementedError(f"down of round {server_round}: fill in what the clients get beside the model")

{% endif %}
    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        # self._model is what the round's clients got: [parameters (d,), buffers (b,) where there are any].
        # Of each reply, in order of partition id: model, likewise, num_examples{{ ", payload" if up }}.
{% if state %}
        # self.state = {{ prefix }}State(...)
{% endif %}
        # return mean_model(replies, self.weights(replies)), {}  # strategies.replies has the parts of a mean
        raise NotImplementedError(f"combine of round {server_round}: fill in what {len(replies)} replies become")
'''

_ROW = r'''"""{{ prefix }}: its row of the registry."""

from __future__ import annotations

{{ imports }}

ROWS = {
    "{{ name }}": Algorithm(
        {{ prefix }},
        {{ prefix }}Client,
        "{{ table }}",
        ({{ losses | join(", ") }}{{ "," if losses | length == 1 }}),
        "{{ mark }} what it minimises and how, in at most 105 characters (authors, year)",
        "{{ sends }}",
    ),
}
'''

_TEST = r'''"""{{ prefix }}: two rounds against a plain NumPy reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.algorithms.small_run import Array, SmallRun


def reference(run: SmallRun) -> list[Array]:
    """(d,) the model after rounds 1 and 2: the paper's box line for line, and nothing of the two halves."""
    w, models = run.models[0], []
    for server_round in (1, 2):
        for features, labels in run.sites:  # (n, 3), (n,)
            raise NotImplementedError(f"round {server_round}: fill in {len(w)}, {features.shape}, {labels.shape}")
        models.append(w)
    return models


def test_two_rounds_follow_the_reference(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, {"strategy": "{{ name }}"})
    np.testing.assert_allclose(run.models[1:], reference(run), rtol=1e-10, atol=1e-10)
    assert np.abs(run.models[2] - run.models[0]).max() > 1e-3
'''

STUBS = {"payload": _PAYLOAD, "client": _CLIENT, "strategy": _STRATEGY, "row": _ROW, "test": _TEST}
