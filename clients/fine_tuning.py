"""Fine-tuning: further local steps of a site from the run's model, on the site's own rows.

The result is the site's personal model. It never leaves the site: the server learns only counts of scores under it.
"""

from collections.abc import Sequence

from clients.local_norms import put_norms
from clients.scoring import LocalSGDClient
from payloads.record import FloatArray
from payloads.settings import SCHEDULE, TrainingSettings
from payloads.wire import ROUND
from problems.models import FlatModel
from problems.site import Site


def fine_tune(
    model: FlatModel,
    parameters: Sequence[FloatArray],
    site: Site,
    training: TrainingSettings,
    steps: int,
    server_round: int,
    norms: object = None,
) -> list[FloatArray]:
    """Return the model after local steps of SGD on cross-entropy, with the run's learning rate without its schedule.

    The batches of a round's fine-tuning are always the same, so a site that is asked twice answers alike.

    Args:
        model: The network, which is changed.
        parameters: The run's model.
        site: The site's training rows.
        training: The run's settings.
        steps: The number of steps.
        server_round: The run's last round, which selects the batches.
        norms: The site's batch norms, if it keeps them.
    """
    constant = {name: TrainingSettings.model_fields[name].default for name in SCHEDULE}
    client = LocalSGDClient(site, model, training.model_copy(update={**constant, "local_steps": steps}))
    client.state = norms
    tuned, _, _ = client.fit(list(parameters), {ROUND: server_round + 1})
    return put_norms(model, tuned, client.state) if model.keeps_norms else tuned
