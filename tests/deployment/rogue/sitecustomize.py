"""Makes a site rogue: Python imports this module in every process of a SuperNode that has its folder on PYTHONPATH.

The variable ROGUE contains JSON, round -> behaviour of the site's ClientApp in that round: "nan", its model is not
finite; "shape", its model is too short; "stale", the reply names the previous round; "raises", it fails; a number, it
replies that many seconds later; "dies in boxes", or another stage of a secure sum, it and its SuperNode are killed at
the start of that stage. With the variable MORTAL the server notices the site's death after 20 seconds instead of 60.
"""

import json
import os
import signal
import sys
import time

if "MORTAL" in os.environ:
    from flwr.common import constant

    constant.HEARTBEAT_DEFAULT_INTERVAL = constant.HEARTBEAT_MIN_INTERVAL
if any("flower-supernode" in argument for argument in sys.orig_argv):
    os.environ["SUPERNODE"] = str(os.getpid())

if any("flwr-clientapp" in argument for argument in sys.orig_argv):
    import numpy as np
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    answer = ClientApp.__call__
    orders = json.loads(os.environ["ROGUE"])
    called: list[ClientApp] = []

    def spoilt(app: ClientApp, message: Message, context: Context) -> Message:
        called.append(app)
        if len(called) > 1:  # the ClientApp that Flower calls passes the process's one message on to another ClientApp
            return answer(app, message, context)
        # the module of the ClientApp's own project, which is on the path by now
        from payloads.wire import ARRAYS, CONFIG, METRICS, PRESENT, ROUND, STAGE, model_arrays, model_record

        order = None
        if message.metadata.message_type == "train":
            config = message.content.config_records[CONFIG]
            order = orders.get(str(config[ROUND]))
            if order == f"dies in {config.get(STAGE, 'values' if PRESENT in message.content else '')}":
                for process in (int(os.environ["SUPERNODE"]), os.getpid()):
                    os.kill(process, signal.SIGKILL)
        reply = answer(app, message, context)
        if order == "raises":
            raise OSError("its disk is full")
        if isinstance(order, int | float):
            time.sleep(order)
        if order == "stale":
            reply.content.metric_records[METRICS][ROUND] -= 1
        if order in ("nan", "shape"):
            model = model_arrays(reply.content.array_records[ARRAYS])
            bad = [np.full_like(array, np.nan) if order == "nan" else array[:-1] for array in model]
            reply.content[ARRAYS] = model_record(bad)
        return reply

    ClientApp.__call__ = spoilt
