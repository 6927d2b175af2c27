"""Tests that Flower's internal names that we use still exist in the installed release.

The module imports only one small file of ours, so it can run alone, without the tests' conftest, against a release that
breaks everything: ``pytest -n 0 --noconftest tests/payloads/test_flower_internals.py``.
"""

import ast
import importlib
import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parent.parent.parent
INTERNALS = PROJECT / "payloads" / "flower_internals.py"
OF_ENGINES = PROJECT / "simulations" / "engines" / "flower_internals.py"
ROOMS = (
    "apps",
    "benchmarks",
    "clients",
    "examples",
    "methods",
    "payloads",
    "privacy",
    "problems",
    "simulations",
    "strategies",
    "tests",
)
# modules that list their public names in __all__
PROMISED = {
    *("flwr.app", "flwr.client", "flwr.clientapp", "flwr.clientapp.mod", "flwr.common", "flwr.serverapp"),
    *("flwr.serverapp.strategy", "flwr.simulation"),
}
# internal names that only our tests use
OF_TESTS = {
    "flwr.cli.build.build_fab_from_disk",
    "flwr.common.constant",
    "flwr.serverapp.exception.AggregationError",
    "flwr.supercore.logger.console_handler",
}


def installed(name: str) -> Any:
    """Return a module of the installed Flower, or an attribute of a module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Typer reads names that Click deprecated
        above, _, last = name.rpartition(".")
        module = importlib.import_module(above or name)
        return getattr(module, last) if hasattr(module, last) else importlib.import_module(name)


def imports(path: Path) -> Iterator[str]:
    """Return the dotted names that a file imports from Flower."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "flwr")


def is_promised(name: str) -> bool:
    module, _, last = name.rpartition(".")
    return module in PROMISED and last in importlib.import_module(module).__all__


def constant(name: str) -> str:
    """Return the text that the table of internals stores under a name."""
    for node in ast.parse(INTERNALS.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return str(ast.literal_eval(node.value))
    raise KeyError(name)


OWN = {path: list(imports(path)) for room in ROOMS for path in sorted((PROJECT / room).rglob("*.py"))}


@pytest.mark.parametrize("name", sorted({name for names in OWN.values() for name in names}))
def test_the_name_is_there(name: str) -> None:
    used = [str(path.relative_to(PROJECT)) for path, names in OWN.items() if name in names]
    try:
        installed(name)
    except ImportError as error:
        pytest.fail(f"flwr {version('flwr')} has no {name}, used in {', '.join(used)}: {error}")


def test_what_is_not_promised_is_imported_in_two_files() -> None:
    beside = {
        str(path.relative_to(PROJECT)): name
        for path, names in OWN.items()
        for name in names
        if not is_promised(name)
        and path not in (INTERNALS, OF_ENGINES)
        and (name not in OF_TESTS or "tests" not in path.parts)
    }
    assert not beside


# Attributes and behaviour, by the name that a failing case points to.


def error_code(name: str) -> Callable[[], bool]:
    return lambda: isinstance(getattr(installed("flwr.common.constant.ErrorCode"), name), int)


def holds_identity(name: str) -> Callable[[], bool]:
    """Return a check that the property has a class attribute behind it, None until an identity is set."""

    def holds() -> bool:
        identity = installed("flwr.supercore.task_identity.TaskIdentity")
        before = getattr(identity, f"_{name}")
        setattr(identity, f"_{name}", 7)
        try:
            return bool(getattr(identity, name) == 7)
        finally:
            setattr(identity, f"_{name}", before)

    return holds


def message() -> Any:
    metadata = installed("flwr.app").Metadata(1, "first", 1, 2, "", "", 0.0, 1.0, "train")
    return installed("flwr.app").Message(installed("flwr.app").RecordDict(), metadata=metadata)


def message_id_is_settable() -> bool:
    metadata = message().metadata
    held = "_message_id" in metadata.__dict__
    metadata.__dict__["_message_id"] = "second"
    return held and metadata.message_id == "second"


def replaceable(name: str) -> Callable[[], bool]:
    """Return a check that a message's property of that name has a replaceable attribute behind it."""

    def holds() -> bool:
        one, other = message(), getattr(message(), name)
        held = one.__dict__[f"_{name}"] is getattr(one, name)
        one.__dict__[f"_{name}"] = other
        return held and getattr(one, name) is other

    return holds


def replies_have_no_other_metadata() -> bool:
    reply = installed("flwr.app").Message(installed("flwr.app").RecordDict(), reply_to=message())
    ids = "run_id message_id src_node_id dst_node_id src_task_id dst_task_id reply_to_message_id group_id"
    return set(vars(reply.metadata)) == {
        f"_{name}" for name in f"{ids} message_type created_at ttl delivered_at".split()
    }


def records_are_their_data_and_checks() -> bool:
    app = installed("flwr.app")
    array = app.Array("float32", (1,), "numpy.ndarray", b"0000")
    records = [app.MetricRecord({"a": 1}), app.ConfigRecord({"a": 1}), app.ArrayRecord({"a": array})]
    for record in [*records, app.RecordDict({"a": records[0]})]:
        like = type(record).__new__(type(record))
        like.__dict__.update({name: record.__dict__[name] for name in ("_check_key_fn", "_check_value_fn")})
        like.__dict__["_data"] = {"a": record["a"]}
        like["b"] = record["a"]
        if record.__dict__["_data"] != {"a": record["a"]} or list(like) != ["a", "b"] or list(record) != ["a"]:
            return False
    return True


def pairs_are_flattened() -> bool:
    parse = installed("flwr.common.config.parse_config_args")
    return bool(parse(['fedx.gamma=0.5 name="b c"']) == {"fedx.gamma": 0.5, "name": "b c"})


def errors_keep_their_words() -> bool:
    pattern = constant("CLIENT_EXCEPTION")
    for kind in (installed("flwr.clientapp.client_app.ClientAppException"), ValueError):
        error = kind("its disk\nis full")
        told = re.fullmatch(pattern, f"{type(error)}:<'{error}'>", re.DOTALL)
        if told is None or told[1] != "its disk\nis full":
            return False
    return True


CODES = ("CLIENT_APP_RAISED_EXCEPTION", "NODE_UNAVAILABLE", "UNKNOWN")
BEHAVIOUR: dict[str, Callable[[], bool]] = {
    **{f"ErrorCode.{name}": error_code(name) for name in CODES},
    **{f"TaskIdentity._{name}": holds_identity(name) for name in ("task_id", "run_id", "node_id")},
    "Metadata._message_id": message_id_is_settable,
    "Metadata of a reply": replies_have_no_other_metadata,
    **{f"Message._{name}": replaceable(name) for name in ("metadata", "content")},
    "TypedDict._data, _check_key_fn, _check_value_fn": records_are_their_data_and_checks,
    "Run.create_empty": lambda: installed("flwr.supercore.run.Run").create_empty(7).run_id == 7,
    "parse_config_args": pairs_are_flattened,
    "ClientAppException": errors_keep_their_words,
    "InMemoryGrid.pull_interval": lambda: (
        "pull_interval" in inspect.signature(installed("flwr.superlink.grid").InMemoryGrid).parameters
    ),
    "HttpGrid": lambda: inspect.isclass(installed("flwr.superlink.grid").HttpGrid),
}


@pytest.mark.parametrize("name", BEHAVIOUR)
def test_it_behaves_as_we_use_it(name: str) -> None:
    assert BEHAVIOUR[name](), f"{name} of flwr {version('flwr')} is not what flower_internals.py takes it for"


# Flower's files, messages and commands outside Python: the Flower file that defines each, and its users here.
NO_INSTALLATION = constant("NO_INSTALLATION")
COMMANDS, HOMES = "simulations/engines/flower.py, tests/deployment/federation.py", "deploy, tests/battery/engines.py"
TEXTS = [
    ("class ClientAppActor", "simulation/ray_transport/ray_actor.py", "strategies/vertical/together.py"),
    (
        """str(type(ex)) + ":<'" + str(ex) + "'>\"""",
        "server/superlink/fleet/vce/vce_api.py",
        "strategies/rounds/errors.py",
    ),
    (
        """str(type(ex)) + ":<'" + str(ex) + "'>\"""",
        "supernode/runtime/run_clientapp.py",
        "strategies/rounds/errors.py",
    ),
    *((f'"{field}"', "cli/run/run.py", COMMANDS) for field in ("run-id", "success")),
    *((f'"{field}"', "cli/ls.py", COMMANDS) for field in ("runs", "status", "status-details")),
    ('"error-message"', "supercore/logger.py", COMMANDS),
    *((f'= "{status}"', "common/constant.py", COMMANDS) for status in ("pending", "starting", "running", "completed")),
    (f'os.getenv({NO_INSTALLATION}) != "1"', "superlink/cli/flower_superlink.py", "apps/doctor/installation.py"),
    (f'"{NO_INSTALLATION}"', "common/constant.py", "apps/doctor/installation.py, simulations/engines/flower.py"),
    ('"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"', "cli/constant.py", "tests/battery/engines.py"),
    ('"FLWR_LOCAL_CONTROL_API_PORT"', "cli/constant.py", "tests/battery/engines.py"),
    ('"FLWR_HOME"', "common/constant.py", HOMES),
    ('"FLWR_TELEMETRY_ENABLED"', "supercore/telemetry.py", HOMES),
    ('"FLWR_DISABLE_UPDATE_CHECK"', "supercore/constant.py", HOMES),
    ('"FLWR_SUPEREXEC_TASK_POLL_INTERVAL"', "supercore/superexec/run_superexec.py", "tests/deployment/federation.py"),
    ('"SuperNode ID: ', "supernode/start_client_internal.py", "tests/deployment/federation.py"),
]


@pytest.mark.parametrize(("text", "file", "used"), TEXTS, ids=[f"{file}-{text}" for text, file, _ in TEXTS])
def test_flower_s_own_files_say_it(text: str, file: str, used: str) -> None:
    said = " ".join((Path(installed("flwr").__file__).parent / file).read_text("utf-8").split())
    assert text in said, f"flwr {version('flwr')}: {file} has no {text}, which {used} counts on"


@pytest.mark.parametrize("name", ["flwr", "flower-superlink", "flower-supernode", "flwr-clientapp", "flwr-serverapp"])
def test_the_command_is_there(name: str) -> None:
    commands = entry_points(group="console_scripts")
    assert name in commands.names, f"flwr {version('flwr')} has no command {name}"


def test_the_renewal_of_a_claim_is_flowers_own_request() -> None:
    """The file that renews claims imports nothing of Flower, and writes the request itself."""
    from simulations.kits import claim

    response = installed("flwr.proto.runtime_pb2.SendTaskHeartbeatResponse")(success=True)
    assert response.SerializeToString().startswith(claim.ACCEPTED)
    assert installed("flwr.proto.runtime_pb2.SendTaskHeartbeatRequest")().SerializeToString() == b""
    client = installed("flwr.supercore.runtime.RuntimeHttpClient")
    assert f'"{claim.PATH}"' in inspect.getsource(client.SendTaskHeartbeat)
    assert installed("flwr.supercore.constant.TASK_TOKEN_HEADER") == claim.TOKEN
    assert installed("flwr.supercore.protobuf.constants.PROTOBUF_MEDIA_TYPE") == claim.MEDIA
    assert installed("flwr.common.constant.HEARTBEAT_DEFAULT_INTERVAL") == claim.LIMIT
    commands = installed("flwr.supercore.constant.TASK_TYPE_TO_COMMAND").values()
    assert set(claim.COMMANDS) <= set(commands)
