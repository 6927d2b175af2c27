"""Keeps the claim of a task while Flower's process for the task starts.

Flower's SuperExec starts a process for each message, and gives the message to another process if the first one has not
answered within 30 seconds. Flower's process first imports its packages, which takes longer if the machine is busy; the
further processes then make the machine slower still. ``florilegium kit start`` therefore puts scripts that run this
file before Flower's own scripts. The process renews the claim from its first moment, while Flower's script runs. If the
claim has already expired, the process ends at once, and prints the reason.

Flower's process waits without a limit for the parts of its message. If the run ends first, they never come, and the
process outlives its SuperNode, since Flower's signal does not wake its main thread. This file therefore ends a process
that still runs two minutes after its task or its parent process has ended.

The file uses only quick parts of the standard library, since its imports delay the first renewal.
"""

import http.client
import os
import runpy
import ssl
import sys
import threading
import time
from pathlib import Path

# Flower's commands whose start-up keeps its claim
COMMANDS = ("flwr-clientapp", "flwr-serverapp")
# Flower's private request, see tests/payloads/test_flower_internals.py: the path, the token's header, the type of the
# content, and the answer's field ``success``, which is true
PATH, TOKEN, MEDIA = "/v1/runtime/send-task-heartbeat", "flwr-task-token", "application/protobuf"
ACCEPTED = b"\x08\x01"
# the seconds after which Flower gives up a claim that was never renewed, between two renewals, and of a request
LIMIT, EVERY, TIMEOUT = 30.0, 10.0, 5.0
AFTER = 120.0  # the seconds that a process may still run after the end of its task or of its parent process
EXPIRED = 75  # the exit code of a process that this file ends, as in sysexits.h: try again later
LEFT_BEHIND = f"this process ends itself, {AFTER:.0f} seconds after the end of its task or of its parent process"


def main() -> None:
    """Run the script of Flower that the first argument names, and renew the claim of its task."""
    script = sys.argv.pop(1)
    threading.Thread(target=_renew, args=(sys.argv[1:],), daemon=True).start()
    runpy.run_path(script, run_name="__main__")


def _renew(arguments: list[str]) -> None:
    parent, renewed, ended = os.getppid(), False, False
    while True:
        alive = os.getppid() == parent
        accepted = _send(arguments) if alive else False
        if ended and not accepted:
            print(f"WARNING: {LEFT_BEHIND}", file=sys.stderr, flush=True)
            os._exit(EXPIRED)
        ended = accepted is False  # the claim has expired, or the task or the parent process has ended
        if ended and alive and not renewed:
            print(describe(_age()), file=sys.stderr, flush=True)
            os._exit(EXPIRED)
        renewed |= accepted is True
        time.sleep(AFTER if ended else EVERY if accepted else 1.0)


def describe(seconds: float) -> str:
    """Return the message about a process that started too slowly.

    Args:
        seconds: The seconds that the process has needed so far.
    """
    return (
        f"WARNING: this machine is too slow for its SuperNodes: a new process could not claim its message within "
        f"{LIMIT:.0f} seconds (it is {seconds:.0f} seconds old), so Flower starts another one. Run fewer SuperNodes or "
        "fewer other programs on this machine, and set stay in site.toml; see docs/troubleshooting.md"
    )


def _send(arguments: list[str]) -> bool | None:
    """Send one renewal. Returns whether it was accepted; None without an answer."""
    address, authority = _option(arguments, "--runtime-api-address"), _option(arguments, "--root-certificates")
    try:
        if "--insecure" in arguments:
            connection = http.client.HTTPConnection(address, timeout=TIMEOUT)
        else:
            context = ssl.create_default_context(cafile=authority or None)
            connection = http.client.HTTPSConnection(address, timeout=TIMEOUT, context=context)
        token = _option(arguments, "--token")
        connection.request("POST", PATH, b"", {TOKEN: token, "content-type": MEDIA, "accept": MEDIA})
        answer = connection.getresponse()
        if answer.status == http.client.OK:
            return answer.read(len(ACCEPTED)) == ACCEPTED
        return False if answer.status == http.client.UNAUTHORIZED else None
    except (OSError, http.client.HTTPException, ValueError):
        return None


def _option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1] if name in arguments[:-1] else ""


def _age() -> float:
    """Return the seconds since this process started. 0 if the system does not report them."""
    try:
        ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError, IndexError):
        return 0.0


if __name__ == "__main__":
    main()
