"""The file of a party's block, which is the party's part of a vertical model.

The party writes the file at the end of a run. A later run reads it to score rows with the model.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.run_config.settings import ConfigError
from apps.sites.files import read_sealed, write_sealed
from apps.sites.settings import SiteConfig
from apps.sites.shared_disk import shares_disk
from apps.sites.state_store import STATE_DIR, base_folder, client_folder, is_token, state_dir
from payloads.record import PayloadError
from problems.data import Preprocessing
from problems.files import make_folder
from vertical.parties import KeptBlock

BLOCK = "block"
BLOCK_FORMAT, BLOCK_VERSION = "florilegium-block", "2"
_NAME = "block.safetensors"
_PAGE = "see docs/vertical-scoring.md"


@dataclass(frozen=True, eq=False, kw_only=True)
class BlockFile(KeptBlock):
    """A party's block with everything that scoring the party's own file needs.

    Attributes:
        path: The path of the file.
        data: The run-config keys of the data set that simulated parties share. {} if the party has its own file.
        names: The names of the columns after the encoding.
        preprocessing: The encoding of the party's file as these columns, except for an intercept, which is the last
            column. None for columns of a data set that simulated parties share.
    """

    path: Path
    names: tuple[str, ...]
    preprocessing: Preprocessing | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


def party_folder(node: Mapping[str, Any], local: Mapping[str, Any], token: str, party: int) -> Path | None:
    """Return a party's folder of a run: in its ``state-dir``, else in the run directory of a server on this machine.

    Args:
        node: The node config.
        local: The paths in a message. They are used if they are on this disk, the party has no ``state-dir``, and its
            ``share-block`` allows the server to get the block.
        token: The run's token.
        party: The party's index.

    Returns:
        The folder. None if neither folder is available.
    """
    base = base_folder(node, local if SiteConfig.of(node).vertical.share_block else {})
    return None if base is None else client_folder(base, token, party)


def write_block(folder: Path, arrays: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> Path:
    """Write a party's block, readable only by its owner, and return the path.

    Args:
        folder: The folder.
        arrays: The ``weights`` and, if the model has a head, the ``head``.
        header: JSON values by name. `read_block` needs ``run``, ``problem``, ``party``, ``parties``, ``active``,
            ``epochs``, ``columns`` and ``preprocessing``; for a network also ``embedding``, ``model`` and ``classes``;
            for a data set that simulated parties share also ``data``; for shared weights also ``history``.
    """
    make_folder(folder, private=True)
    texts = {name: json.dumps(value) for name, value in header.items()}
    write_sealed(folder / _NAME, BLOCK_FORMAT, BLOCK_VERSION, arrays, texts, private=True)
    return folder / _NAME


def read_block(node: Mapping[str, Any], score_run: str, problem: str, partition: tuple[int, int]) -> BlockFile:
    """Return a party's block of a run.

    Args:
        node: The party's node config.
        score_run: The run's token or, in a simulation, the path of its directory.
        problem: The problem of the run that scores.
        partition: The party's index, and the number of parties.

    Raises:
        ConfigError: The block does not exist, cannot be read, or belongs to another run, party or problem.
    """
    party, parties = partition
    directory, token = Path(score_run).expanduser(), score_run
    if shares_disk() and (directory / "run-token").is_file():
        token = (directory / "run-token").read_text("utf-8", errors="replace")
    if not is_token(token):
        allowed = "the 32 hexadecimal digits of a run's token, or in a simulation a run directory"
        raise ConfigError(f"party {party}: vfb2.score-run", got=repr(score_run), allowed=allowed, hint=_PAGE)
    base = state_dir(node) or directory / "client-state"
    path = SiteConfig.of(node).vertical.block or client_folder(base, token, party) / _NAME
    if not path.is_file():
        got, where = f"{str(path)!r}, which does not exist", f"in the node config's {STATE_DIR}, or at its {BLOCK}"
        allowed = f"the party's block of the run {score_run!r}, {where}"
        raise ConfigError(f"party {party}: {BLOCK}", got=got, allowed=allowed, hint=_PAGE)
    return _read(path, path.stat().st_mtime_ns, token, problem, party, parties)


@lru_cache(maxsize=256)
def _read(path: Path, changed: int, token: str, problem: str, party: int, parties: int) -> BlockFile:
    key = f"party {party}: {BLOCK}"
    try:
        arrays, texts = read_sealed(path, BLOCK_FORMAT, BLOCK_VERSION)
        header = {name: json.loads(text) for name, text in texts.items() if name not in ("format", "version")}
        wanted = {"run": token, "problem": problem, "party": party, "parties": parties}
        wrong = {name: header[name] for name, value in wanted.items() if header[name] != value}
        made_of = header["preprocessing"]
        block = BlockFile(
            weights=arrays["weights"],
            active=tuple(header["active"]),
            epochs=header["epochs"],
            embedding=header.get("embedding", 0),
            model=header.get("model", ""),
            head=arrays.get("head"),
            share=None if (words := arrays.get("share")) is None else words.view(np.uint64),
            history=header.get("history", ""),
            classes=tuple(header.get("classes", ())),
            path=path,
            names=tuple(header["columns"]),
            preprocessing=None if made_of is None else Preprocessing.from_json(made_of),
            data=header.get("data", {}),
        )
    except (PayloadError, KeyError, ValueError) as error:
        hint = "train again: blocks of release 0.1.0 lack needed entries" if "version 'none'" in str(error) else _PAGE
        got = f"{str(path)!r}, which cannot be read ({type(error).__name__}: {error})"
        raise ConfigError(key, got=got, allowed="a block that a run has written", hint=hint) from None
    if wrong:
        got = f"{str(path)!r} of {', '.join(f'{name} {value!r}' for name, value in wrong.items())}"
        allowed = ", ".join(f"{name} {wanted[name]!r}" for name in wrong)
        raise ConfigError(key, got=got, allowed=allowed, hint=_PAGE)
    return block
