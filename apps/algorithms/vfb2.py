"""The vertical algorithms: the rows of the registry."""

from __future__ import annotations

from apps.algorithms import Algorithm
from clients.vfb2 import VFB2SAGAClient, VFB2SGDClient, VFB2SVRGClient
from payloads.vfb2 import VERTICAL
from strategies.vfb2 import VFB2SAGA, VFB2SGD, VFB2SVRG

ROWS = {
    "vfb2-sgd": Algorithm(
        VFB2SGD,
        VFB2SGDClient,
        "vfb2",
        (VERTICAL,),
        "vertical: parties with columns of the same rows, asynchronous SGD under masks (VFB2, Zhang et al. 2021)",
        "between parties, masked partial sums and slopes; to the server what the reporter measured",
    ),
    "vfb2-svrg": Algorithm(
        VFB2SVRG,
        VFB2SVRGClient,
        "vfb2",
        (VERTICAL,),
        "the same with SVRG: a snapshot of all slopes before each epoch",
        "the same; all slopes once an epoch",
    ),
    "vfb2-saga": Algorithm(
        VFB2SAGA,
        VFB2SAGAClient,
        "vfb2",
        (VERTICAL,),
        "the same with SAGA: a slope kept for every row",
        "the same; all slopes once a run",
    ),
}
