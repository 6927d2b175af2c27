"""A party's label flips, which it stores on its own disk so all runs flip the same labels.

With ``vfb2.label-epsilon`` a party flips some of its labels at random (randomised response). If each of 25 runs drew
new flips, the majority of a row's 25 flipped labels would reveal its label. The folder contains a random key and a
sealed file for each epsilon. The file has, for each row, a keyed hash of its id and label (HMAC-SHA256, cut to 16
bytes) and whether the label is flipped. Flips for several epsilons together spend only the largest epsilon. Parties may
share the folder.

A row's id is the text in the id column. With another id column a party would draw new flips of the same labels. The
folder therefore also records how each party's ids were read, and other ways to read the ids are refused.
"""

import contextlib
import hmac
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apps.parties.data import settings_of
from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import ConfigError
from apps.sites.files import read_sealed, write_sealed
from apps.sites.rows import with_dialect
from apps.sites.state_store import STATE_DIR
from payloads.record import PayloadError
from problems.files import lock_file, write_atomic
from vertical.policy import PolicyError
from vertical.segment.dominator import Flips, draw_events, flip_rate

FORMAT, VERSION = "florilegium-label-flips", "1"
KEY_BYTES, DIGEST_BYTES = 32, 16
_KEY, _FILE, _READINGS = "label-flips.key", "label-flips-{}.safetensors", "label-flips-ids.json"


class FlipMemory:
    """The flips of a party's labels, by epsilon.

    Args:
        folder: The folder of the flips. It is created if it is missing.
        party: The party's index.
        reading: The keys that select the rows' ids in the party's file, with their values.

    Raises (each method):
        ConfigError: The key or a file of flips is damaged.
        PolicyError: The party has flipped labels of rows whose ids were read in another way.
    """

    def __init__(self, folder: Path, party: int = 0, reading: Mapping[str, str] | None = None) -> None:
        self.folder, self._party, self._reading = folder, str(party), dict(reading or {})

    def check(self) -> None:
        """Check that the ids are read as in earlier runs. In the first run, record how they are read."""
        with self._lock():
            pass

    def recall(self, marks: Sequence[str], epsilon: float) -> tuple[Flips, int, float]:
        """Return the flips of the labels with these marks. Unknown flips are drawn and stored.

        Args:
            marks: The mark of each label, see `PartyData.training_marks`.
            epsilon: The run's epsilon.

        Returns:
            The flips (n,), the number of new flips, and the largest epsilon with which any of these labels was flipped.
        """
        with self._lock() as key:
            digests, stored = _digests(key, marks), self._all()
            known = stored.setdefault(epsilon, {})
            new = [digest for digest in dict.fromkeys(digests) if digest not in known]
            chances = [_chance(digest, epsilon, stored) for digest in new]
            known |= dict(zip(new, draw_events(np.array(chances)).tolist(), strict=True))
            if new:
                self._write(epsilon, known)
            spent = max(used for used, flips in stored.items() if not flips.keys().isdisjoint(digests))
            return np.array([known[digest] for digest in digests], dtype=np.bool_), len(new), spent

    def keep(self, marks: Sequence[str], epsilon: float, flips: Flips) -> None:
        """Store the flips that the first active party has drawn, for labels without a flip for this epsilon.

        Args:
            marks: The mark of each label, see `PartyData.training_marks`.
            epsilon: The run's epsilon.
            flips: The flips (n,).
        """
        with self._lock() as key:
            known = self._all().get(epsilon, {})
            drawn = dict(zip(_digests(key, marks), flips.tolist(), strict=True))
            if drawn.keys() - known.keys():
                self._write(epsilon, drawn | known)

    def _all(self) -> dict[float, dict[bytes, bool]]:
        """Return all flips: epsilon -> digest -> whether that label is flipped."""
        paths = self.folder.glob(_FILE.format("*"))
        return {float(path.stem.removeprefix("label-flips-")): self._read(path) for path in paths}

    @contextlib.contextmanager
    def _lock(self) -> Iterator[bytes]:
        """Yield the key, drawn if it is missing, while a lock keeps other processes from the files."""
        with lock_file(self.folder / _KEY) as file:
            key = file.read()
            if not key:
                key = os.urandom(KEY_BYTES)
                file.write(key)
                file.flush()
                os.fsync(file.fileno())
            if len(key) != KEY_BYTES:
                raise _damage(f"{self.folder / _KEY} with {len(key)} bytes")
            self._check_reading()
            yield key

    def _check_reading(self) -> None:
        if not self._reading:
            return
        path = self.folder / _READINGS
        try:
            readings = json.loads(path.read_text("utf-8")) if path.exists() else {}
            known = dict(readings.setdefault(self._party, self._reading))
        except (ValueError, TypeError, AttributeError) as error:
            raise _damage(f"{path}: {error}") from None
        for key, value in self._reading.items():
            if known.get(key) != value:
                got = f"{value!r}, but label flips that are stored for {key}={known.get(key)!r}"
                allowed = f"{known.get(key)!r}, since with other ids the same labels would be flipped again"
                raise PolicyError(key, got=got, allowed=allowed, hint=f"set {key} to {known.get(key)!r}")
        if readings[self._party] is self._reading:
            write_atomic(path, json.dumps(readings).encode(), private=True)

    def _read(self, path: Path) -> dict[bytes, bool]:
        try:
            arrays, _ = read_sealed(path, FORMAT, VERSION)
        except PayloadError as error:
            raise _damage(str(error)) from None
        whole, flips = arrays["digests"].tobytes(), arrays["flips"].tolist()
        return {whole[DIGEST_BYTES * n : DIGEST_BYTES * (n + 1)]: flip for n, flip in enumerate(flips)}

    def _write(self, epsilon: float, known: dict[bytes, bool]) -> None:
        digests = np.frombuffer(b"".join(known), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
        arrays = {"digests": digests, "flips": np.array(list(known.values()), dtype=np.bool_)}
        path = self.folder / _FILE.format(repr(float(epsilon)))
        write_sealed(path, FORMAT, VERSION, arrays, {}, private=True)


def id_keys(config: RunConfig, node: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys that select the rows' ids in a party's file, with their values.

    Args:
        config: The run config.
        node: The node config, which may replace the run's values.
    """
    spec = with_dialect(config.data, node)
    id_column = settings_of(config).id_column
    return {"vfb2.id-column": id_column, "separator": spec.separator, "encoding": spec.encoding}


def _digests(key: bytes, marks: Sequence[str]) -> list[bytes]:
    return [hmac.digest(key, mark.encode(), "sha256")[:DIGEST_BYTES] for mark in marks]


def _chance(digest: bytes, epsilon: float, stored: Mapping[float, Mapping[bytes, bool]]) -> float:
    """Return the chance that a label is flipped, given its flips for the next larger and the next smaller epsilon.

    The flipped label for an epsilon is the flipped label for the next larger epsilon, flipped again with the chance
    that makes up the difference. So all flips of a label together reveal no more than its flip for the largest epsilon.
    """
    rates = {used: flips[digest] for used, flips in stored.items() if digest in flips}
    larger = min((used for used in rates if used > epsilon), default=None)
    smaller = max((used for used in rates if used < epsilon), default=None)
    own_rate = flip_rate(epsilon)
    flipped = own_rate if larger is None else _chance_after(rates[larger], True, flip_rate(larger), own_rate)
    if smaller is None:
        return flipped
    after, rate = rates[smaller], flip_rate(smaller)
    weight_flipped = flipped * _chance_after(True, after, own_rate, rate)
    weight_kept = (1 - flipped) * _chance_after(False, after, own_rate, rate)
    # both weights are 0 only if flips that another party drew contradict both values
    return weight_flipped / (weight_flipped + weight_kept) if weight_flipped + weight_kept else own_rate


def _chance_after(before: bool, after: bool, rate: float, wider: float) -> float:
    """Return the chance that flip ``before`` becomes ``after`` as the flip rate rises from ``rate`` to ``wider``."""
    again = (wider - rate) / max(1 - 2 * rate, 1e-300)
    return again if before != after else 1 - again


def _damage(cause: str) -> ConfigError:
    return ConfigError(
        STATE_DIR,
        got=f"unusable label flips: {cause}",
        allowed="undamaged label flips",
        hint="restore a copy of the files: without them the next run draws new flips, which spend its epsilon again",
    )
