"""The file of a site's settings: every setting takes effect, or the site refuses the run."""

import os
from pathlib import Path

import pytest
import tomli_w
from flwr.app import ConfigRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.config import ConfigError, Scalar
from apps.server_app import RunFailedError
from apps.sites.settings import KEYS, PATHS, TABLES, SiteConfig
from apps.sites.site_config import NODE_KEYS, effective
from apps.sites.staying import look_up, staying_seconds
from payloads.settings import describe_allowed, kebab
from simulations.baselines import train_baselines
from simulations.engines.launch import run_federation
from tests.apps.test_own_data import files
from tests.apps.test_owner import KEYS as RUN
from tests.apps.test_owner import shake_hands
from tests.battery.federation import federate, flat_config, patients
from tests.refusals import refuses, states

EXAMPLES: dict[str, list[Scalar]] = {"an integer": [3, 50], "a number": [0.25, 0.5], "true or false": [True, False]}
OF_KEYS: dict[str, list[Scalar]] = {
    "pinned-peers": [f"bank={'0' * 64}"],
    "allowed-maskings": ["pairwise"],
    "allow-scores-for": ["nobody"],
    "advertise": ["none", "here:1"],
    "listen": ["here:1"],
    "dealer": ["here:1"],
}


def examples(key: str) -> list[Scalar]:
    """Return allowed values of a key."""
    allowed = describe_allowed(KEYS[key].field)
    fitting = (values for start, values in EXAMPLES.items() if allowed.startswith(start))
    return OF_KEYS.get(key) or next(fitting, ["/srv/a", "x y"])


VALUES = {key: st.sampled_from(examples(key)) for key in KEYS}


def write(folder: Path, text: str | bytes) -> dict[str, Scalar]:
    """Write a text to a file, and return a node config that names it."""
    path = folder / "site.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return {"partition-id": 0, "num-partitions": 1, "site-config": str(path)}


@settings(deadline=None, max_examples=100)
@given(data=st.data(), keys=st.fixed_dictionaries({}, optional=VALUES).filter(bool))
def test_every_key_of_a_file_arrives(
    data: st.DataObject, keys: dict[str, Scalar], tmp_path_factory: pytest.TempPathFactory
) -> None:
    nested: dict[str, object] = {}
    for key, value in keys.items():
        inside = nested.setdefault(KEYS[key].table, {}) if data.draw(st.booleans()) else nested
        assert isinstance(inside, dict)
        inside[key] = value
    text = f"# ours\n{tomli_w.dumps(nested)}"
    text = text.replace("\n", data.draw(st.sampled_from(["\n", "\r\n", " # a note\n"])))
    node = write(tmp_path_factory.getbasetemp(), b"\xef\xbb\xbf" * data.draw(st.booleans()) + text.encode())
    paths = {key: str(Path(str(node["site-config"])).parent / str(keys[key])) for key in keys.keys() & PATHS}
    assert effective(node) == {**node, **keys, **paths}  # a relative path begins at the file's folder
    own = SiteConfig.of(effective(node))
    assert {kebab(name) for table in TABLES for name in getattr(own, table).model_fields_set} == keys.keys()
    seconds = keys.get("stay", 0)
    assert staying_seconds(node) == staying_seconds(effective(node)) == seconds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("secure-sum = 'true'", "secure-sum: got 'true', allowed: true or false"),
        ("[privacy]\nsecure-sums = true", r"\[privacy\] secure-sums: got an unknown key, .*did you mean 'secure-sum'"),
        ("[privcy]\nsecure-sum = true", "privcy: got an unknown table, .*did you mean 'privacy'"),
        (
            "[data]\nsecure-sum = true",
            r"\[data\] secure-sum: got a key of \[privacy\], .*; move secure-sum to \[privacy\]",
        ),
        ("stay = 1\n[process]\nstay = 2", r"\[process\] stay: got stay twice"),
        ("stay = 1\nstay = 1", "Cannot overwrite a value .at line 2"),
        ("partition-id = 0", "partition-id: got 0, allowed: a key of the node config"),
        ("privacy = true", r"privacy: got True, allowed: the table \[privacy\]"),
        ("allowed-strategies = ['coda']", r"got \['coda'\], allowed: names separated by commas"),
        ("secure-sum = true\nstay", "Expected '=' after a key .*line 2"),
        ("# nothing\n[privacy]", "site.toml: no key"),
        (b"\xff\xfes\x00", "UTF-16, but TOML is UTF-8"),
        (b"model = '\xe9'", "not UTF-8 .byte 10"),
        ("largest-epsilon = nan", "largest-epsilon: got nan, allowed: a number > 0"),
        ("state-dir = ''", "state-dir: got '', allowed: a path that is not empty"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_the_handshake(text: str | bytes, said: str, tmp_path: Path) -> None:
    node = write(tmp_path, text)
    with refuses(ConfigError, said) as refusal:
        effective(node)
    assert shake_hands(node) == str(refusal.value)


@pytest.mark.parametrize("path", ["site.toml", "", "/nowhere/site.toml", "/", "/dev/null", 5])
def test_a_path_without_a_file_is_refused(path: Scalar) -> None:
    with refuses(ConfigError, "^site-config: got"):
        effective({"site-config": path})


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "site.toml")
    with refuses(ConfigError, "not a file"):
        effective({"site-config": str(tmp_path / "site.toml")})


def test_two_values_of_a_key_are_refused(tmp_path: Path) -> None:
    node = write(tmp_path, "most-handshakes = 1\nsecure-sum = true")
    assert effective({**node, "secure-sum": True})["secure-sum"] is True
    for key, value in (("secure-sum", False), ("most-handshakes", True)):
        with refuses(ConfigError, f"{key}: got {value} in the node config and .*; remove {key}"):
            effective({**node, key: value})


def sites(folder: Path, text: str = "", **keys: Scalar) -> list[dict[str, Scalar]]:
    """Three sites with rows and with config files that name their paths; the first site's file has further text."""
    nodes = files(folder, [patients(60, place) for place in range(3)])
    for place, node in enumerate(nodes):
        path = folder / f"site-{place}.toml"
        least = {"least-cell": node.pop("least-cell")}
        path.write_text(tomli_w.dumps({"data": node, "privacy": {**least, **keys}}) + text * (place == 0))
        nodes[place] = {"site-config": str(path)}
    return nodes


def test_a_demand_in_the_file_is_met_or_the_run_refused(tmp_path: Path) -> None:
    nodes = sites(tmp_path, "[vertical]\n# none\n", **{"secure-sum": True})
    run = {**RUN, "num-server-rounds": 1}
    with refuses(RunFailedError, r"secure-sum: got a run with privacy\.secure-sum=false, allowed: true"):
        federate(tmp_path / "refused", run, nodes=nodes)
    met, _ = federate(tmp_path / "met", {**run, "privacy.secure-sum": True}, nodes=nodes)
    assert met.lines[-1]["clients_answered"] == 3


def test_a_file_gives_the_run_of_its_node_config(tmp_path: Path) -> None:
    run = {**RUN, "num-server-rounds": 2}
    plain = files(tmp_path, [patients(60, place) for place in range(3)])
    expected, _ = federate(tmp_path / "plain", run, nodes=plain)
    nodes = sites(tmp_path)
    for stack in (1, 3):
        flat = flat_config(tmp_path / f"files-{stack}", run)
        run_federation(3, flat, node_configs=nodes, stack=stack)
        if stack == 1:
            model = tmp_path / "files-1" / "model.safetensors"
            assert model.read_bytes() == expected.model_bytes
    train_baselines(tmp_path / "files-1", 3, flat_config(tmp_path / "files-1", run), nodes, lambda line: None)


def test_a_file_is_read_for_each_message(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    text = Path(str(nodes[0]["site-config"])).read_text()
    assert isinstance(shake_hands(nodes[0]), ConfigRecord)
    Path(str(nodes[0]["site-config"])).write_text(f"{text}\n[process]\nstay = -1")
    assert states(str(shake_hands(nodes[0])), "stay: got -1, allowed: a number >= 0")
    assert staying_seconds(nodes[0]) == 0


def test_a_file_decides_how_much_errors_say(tmp_path: Path) -> None:
    assert look_up({}, "privacy", "verbose-errors") is None
    nodes = sites(tmp_path, **{"verbose-errors": False})
    told = shake_hands(nodes[0], {**RUN, "feature-columns": "nothing"})
    assert "this site's log has the reason" in str(told)
    (whole,) = sites(tmp_path)[:1]
    assert "no column 'nothing'" in str(shake_hands(whole, {**RUN, "feature-columns": "nothing"}))


def test_tables_have_no_key_in_common() -> None:
    assert len(KEYS) == sum(len(model.model_fields) for model in TABLES.values())
    assert not KEYS.keys() & {*NODE_KEYS, *TABLES}
