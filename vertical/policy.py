"""A data owner's policy: the conditions under which its party takes part in a vertical run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from problems.errors import NOTHING, InputError
from vertical.segment.plan import PAIRWISE, TWO_TREES
from vertical.transport.identity import fingerprint

FEWEST_PARTIES, PINNED_PEERS, PEER_CA = "fewest-parties", "pinned-peers", "peer-ca"
LARGEST_EPSILON, FEWEST_ROWS = "largest-label-epsilon", "fewest-rows"
# the name of secret shares in ``allowed-maskings``
SHARES = "shares"
# the default of a party with its own file
DEFAULT_FEWEST_ROWS = 100
ALLOW_INTERSECTION, ALLOWED_MASKINGS = "allow-intersection", "allowed-maskings"
ALLOW_SCORES = "allow-scores-for"
PEER_HOSTS = "peer-hosts"
# allowed values, from least to most disclosure; the last two are also values of ``vfb2.score-for``
SCORES_FOR = ("nobody", "label-holders", "all")
_PAGE = "correct the key, see docs/vertical-policy.md"


class RefusalError(ValueError):
    """A party's refusal to take part. It ends the run with this text, without a retry."""


class StatedRefusalError(RefusalError):
    """A refusal whose text contains no data of the party."""


class PolicyError(InputError, StatedRefusalError):
    """A run that the policy forbids, or a policy that cannot be read. The text contains no data."""


@dataclass(frozen=True)
class Policy:
    """The conditions that a run must meet. The defaults set no conditions.

    Attributes:
        fewest_parties: The minimum number of parties, each with its own certificate.
        pins: The names of accepted peers, by the SHA-256 (hexadecimal) of the peer's certificate or of its issuing
            authority's certificate, its *pin*. Empty: any peer. A pin covers one party only.
        authorities: The certificates (DER) of the authorities that may be pinned.
        largest_label_epsilon: The bound of ``vfb2.label-epsilon``, which must also be above 0. None: any value, even 0.
        allow_intersection: Whether parties may search for the ids that all parties have.
        allowed_maskings: The allowed values of ``vfb2.masking``, and `SHARES` for secret shares. Empty: any.
        scores_for: The parties that may learn scores to which this party's columns contribute; an element of
            `SCORES_FOR`.
        fewest_rows: The minimum number of training rows, of scored rows, and with several active parties or secret
            shares of test rows.
        peer_hosts: The hosts to which this party connects. Empty: any host that the server names.
    """

    fewest_parties: int = 0
    pins: Mapping[str, str] = field(default_factory=dict)
    authorities: Sequence[bytes] = ()
    largest_label_epsilon: float | None = None
    allow_intersection: bool = True
    allowed_maskings: Sequence[str] = ()
    scores_for: str = "all"
    fewest_rows: int = 0
    peer_hosts: Sequence[str] = ()

    def check_run(
        self, parties: int, *, label_epsilon: float, masking: str, intersection: bool, scores_for: str = ""
    ) -> None:
        """Check a run's settings against the policy.

        Args:
            intersection: Whether parties search for common ids.
            scores_for: The recipients of scores, in a run that scores rows and uses no label. "": the run trains.

        Raises:
            PolicyError: The run violates the policy. The error names the first violated key.
        """
        self._check_count(parties)
        largest = self.largest_label_epsilon
        if largest is not None and not scores_for and not 0 < label_epsilon <= largest:
            got, allowed = f"a run with vfb2.label-epsilon={label_epsilon:g}", f"above 0 and at most {largest:g}"
            raise PolicyError(LARGEST_EPSILON, got=got, allowed=allowed, hint=f"set vfb2.label-epsilon={largest:g}")
        if self.allowed_maskings and masking not in self.allowed_maskings:
            got, allowed = f"a run with vfb2.masking={masking!r}", " or ".join(self.allowed_maskings)
            hint = "set vfb2.masking to an allowed value"
            if SHARES in (masking, *self.allowed_maskings):
                got, hint = f"a run with {masking}", "choose shared-sgd for shares, or vfb2.masking for masks"
            raise PolicyError(ALLOWED_MASKINGS, got=got, allowed=allowed, hint=hint)
        if scores_for and SCORES_FOR.index(scores_for) > SCORES_FOR.index(self.scores_for):
            got, allowed = f"a run that scores rows for {scores_for}", f"scores for {self.scores_for}"
            hint = f"set vfb2.score-for={self.scores_for!r}" if self.scores_for != "nobody" else "exclude the party"
            raise PolicyError(ALLOW_SCORES, got=got, allowed=allowed, hint=hint)
        if intersection:
            self.check_intersection()

    def check_intersection(self) -> None:
        """Raise PolicyError if parties must not search for the ids that all parties have."""
        if not self.allow_intersection:
            raise PolicyError(
                ALLOW_INTERSECTION,
                got="a run that searches for common ids",
                allowed="vfb2.alignment='digest', since allow-intersection is false",
                hint="provide the same ids at all parties, and set vfb2.alignment='digest'",
            )

    def check_rows(self, rows: int, test_rows: int = 0, dominators: int = 1, *, shared: bool = False) -> None:
        """Refuse sums over few rows, whose cells are easy to guess.

        Another party could list only a few ids, to leave only those rows in common.

        Args:
            rows: The number of training rows, or of scored rows.
            test_rows: The number of test rows.
            dominators: The number of active parties, among which the test rows are divided.
            shared: Whether the run uses secret shares, whose metrics are sums over the test rows.

        Raises:
            PolicyError: There are fewer rows than the owner requires.
        """
        few = [f"{rows:,} rows"] if rows < self.fewest_rows else []
        if (dominators > 1 or shared) and 0 < test_rows < self.fewest_rows:
            few.append(f"{test_rows:,} test rows" + (f" for {dominators} active parties" if dominators > 1 else ""))
        if few:
            got, hint = (
                f"a run of {' and '.join(few)}",
                f"add common rows, or ask the party's owner to lower {FEWEST_ROWS}",
            )
            raise PolicyError(FEWEST_ROWS, got=got, allowed=f"{self.fewest_rows:,} or more", hint=hint)

    def check_hosts(self, hosts: Mapping[int, str]) -> None:
        """Check the hosts that the server names.

        Args:
            hosts: The host of each peer to which this party may connect.

        Raises:
            PolicyError: A host is not in ``peer-hosts``.
        """
        for party, host in hosts.items():
            if self.peer_hosts and host not in self.peer_hosts:
                allowed = ", ".join(self.peer_hosts)
                hint = f"add the host of party {party} to {PEER_HOSTS}, or exclude party {party}"
                raise PolicyError(PEER_HOSTS, got=f"party {party} at {host!r}", allowed=allowed, hint=hint)

    def check_peers(self, certificates: Sequence[bytes], me: int, own: bytes) -> list[str]:
        """Check the certificates of all parties, and return the name of each party's pin; "" if nothing is pinned.

        Args:
            certificates: The certificate (DER) of each party.
            me: This party's index. Its entry in ``certificates`` is not used.
            own: This party's certificate. A pin that covers this party covers no other party.

        Raises:
            PolicyError: Too few parties, a party without a pin, or two parties under one pin.
        """
        self._check_count(len({*certificates[:me], own, *certificates[me + 1 :]}))
        if not self.pins:
            return [""] * len(certificates)
        names = [self._pin(own if party == me else shown) for party, shown in enumerate(certificates)]
        for party, name in enumerate(names):
            if party == me:
                continue
            if not name:
                got = f"party {party} without a pin; the SHA-256 of its certificate: {fingerprint(certificates[party])}"
                allowed = "a pinned certificate, or a certificate issued by a pinned authority in peer-ca"
                hint = "ask the party for its SHA-256; pin an equal SHA-256, or exclude the party"
                raise PolicyError(PINNED_PEERS, got=got, allowed=allowed, hint=hint)
            if names.count(name) > 1:
                first, second = [peer for peer, pin in enumerate(names) if pin == name][:2]
                got = f"parties {first} and {second} under the pin {name!r}"
                raise PolicyError(PINNED_PEERS, got=got, allowed="one party for each pin", hint="exclude one party")
        return names

    def _check_count(self, parties: int) -> None:
        if parties < self.fewest_parties:
            got, allowed = f"a run of {parties} parties", f"{self.fewest_parties} or more parties"
            raise PolicyError(FEWEST_PARTIES, got=got, allowed=allowed, hint="add parties to the run")

    def _pin(self, certificate: bytes) -> str:
        """Return the name of the pin that covers a certificate, or ""."""
        if (direct := self.pins.get(fingerprint(certificate))) is not None:
            return direct
        for authority in self.authorities:
            name = self.pins.get(fingerprint(authority))
            if name is not None and _is_issued_by(certificate, authority):
                return name
        return ""


def _is_issued_by(certificate: bytes, authority: bytes) -> bool:
    """Return whether an authority has signed a certificate directly. Both are DER."""
    try:
        x509.load_der_x509_certificate(certificate).verify_directly_issued_by(x509.load_der_x509_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def parse_pins(text: str) -> dict[str, str]:
    """Read pins, "name=SHA-256 ...". A SHA-256 may contain colons and capitals.

    Returns:
        The names of the pinned peers by SHA-256.

    Raises:
        PolicyError: The text has no pins, a part is not a pin, or a name or a SHA-256 occurs twice.
    """
    pairs = []
    for part in text.split():
        name, equals, digits = part.partition("=")
        digest = digits.replace(":", "").lower()
        if not name or not equals or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            got, allowed = repr(part), "name=SHA-256 in hexadecimal, pins separated by spaces"
            raise PolicyError(PINNED_PEERS, got=got, allowed=allowed, hint=_PAGE)
        pairs.append((name, digest))
    if not pairs:
        raise PolicyError(PINNED_PEERS, got=NOTHING, allowed="at least one pin", hint="add a pin, or remove the key")
    for part, values in zip(("name", "SHA-256"), zip(*pairs, strict=True), strict=True):
        twice = [value for value, count in Counter(values).items() if count > 1]
        if twice:
            got, allowed = f"the {part} {twice[0]!r} twice", f"each {part} once"
            raise PolicyError(PINNED_PEERS, got=got, allowed=allowed, hint=f"remove a pin with this {part}")
    return {digest: name for name, digest in pairs}


def parse_maskings(text: str) -> tuple[str, ...]:
    """Read maskings separated by commas.

    Raises:
        PolicyError: A masking is unknown, or the text has none.
    """
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [repr(name) for name in names if name not in (PAIRWISE, TWO_TREES, SHARES)]
    if unknown or not names:
        got, allowed = (
            ", ".join(unknown) or NOTHING,
            f"{PAIRWISE}, {TWO_TREES}, {SHARES}, or several separated by commas",
        )
        raise PolicyError(ALLOWED_MASKINGS, got=got, allowed=allowed, hint=_PAGE)
    return names
