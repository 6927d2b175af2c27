"""A dealer that is a third party: a service that gives each party of a segment its random numbers, over TLS 1.3.

The dealer knows the parties' certificates, and they know the dealer's. A party sends a `DealRequest` in JSON after its
length (4 bytes). The dealer waits until all parties of the segment have sent the same order, deals once, and answers
each with a byte (1: numbers, 0: an error), a length (8 bytes) and the content.
"""

import asyncio
import ssl
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from logging import INFO

from flwr.common import log
from pydantic import BaseModel, Field, NonNegativeInt, ValidationError

from vertical.shares.order import DealOrder
from vertical.transport.addresses import Address, reason_of
from vertical.transport.endpoint import Limits
from vertical.transport.frames import PartyError
from vertical.transport.identity import Identity, client_context, fingerprint, server_context

MAX_BYTES = 8 * 2**30
"""The largest deal, in bytes."""
_LENGTH, _ANSWER = struct.Struct(">I"), struct.Struct(">BQ")
_MAX_REQUEST = 2**16
# seconds that the dealer waits for all parties of a segment, and that a party waits for the dealer's answer
PATIENCE = 60.0


class DealRequest(BaseModel, frozen=True, extra="forbid"):
    """A party's request.

    Attributes:
        run: The run's salt, in hexadecimal.
        serial: The number of the attempt at the segment.
        me: The party's index.
        parties: The fingerprint of each party's certificate.
        order: The numbers that the segment needs.
    """

    run: str = Field(pattern="^[0-9a-f]{32}$")
    serial: NonNegativeInt
    me: NonNegativeInt
    parties: tuple[str, ...]
    order: DealOrder


class RequestError(ValueError):
    """A request that the dealer refuses."""


@dataclass
class _Deal:
    """A segment's deal. It has packages as soon as all parties have asked."""

    request: DealRequest
    asked: set[int] = field(default_factory=set)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    packages: asyncio.Task[list[bytes]] | None = None


class Dealer:
    """The service.

    Args:
        identity: The dealer's certificate and key.
        parties: The certificates (DER) of the parties that may ask.
        patience: The seconds that the dealer waits for all parties of a segment.
    """

    def __init__(self, identity: Identity, parties: Sequence[bytes], *, patience: float = PATIENCE) -> None:
        self._context = server_context(identity, parties)
        self._known = {fingerprint(certificate) for certificate in parties}
        self._patience = patience
        self._deals: dict[tuple[str, int], _Deal] = {}
        self._dealt: set[tuple[str, int]] = set()

    async def listen(self, address: Address) -> asyncio.Server:
        """Return a server that answers at an address.

        Args:
            address: A TCP address.
        """
        return await asyncio.start_server(self._answer, address.host, address.port, ssl=self._context)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = writer.get_extra_info("ssl_object").getpeercert(True)
        with closing(writer):
            try:
                async with asyncio.timeout(self._patience):
                    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                    text = await reader.readexactly(min(length, _MAX_REQUEST))
                content, good = await self._find(text, fingerprint(own)), True
            except RequestError as error:
                log(INFO, "refused a request of %s: %s", fingerprint(own)[:16], error)
                content, good = str(error).encode(), False
            except (OSError, EOFError):
                return
            log(INFO, "answered %s: %d bytes", fingerprint(own)[:16], len(content))
            writer.write(_ANSWER.pack(good, len(content)))
            writer.write(content)
            await writer.drain()

    async def _find(self, text: bytes, own: str) -> bytes:
        """Return the package of the party with this fingerprint; raise RequestError if it cannot get one."""
        request = self._read(text, own)
        key = request.run, request.serial
        if key in self._dealt:
            raise RequestError(f"the numbers of attempt {request.serial} of run {request.run} were dealt before")
        deal = self._deals.setdefault(key, _Deal(request))
        if deal.request.model_copy(update={"me": request.me}) != request:
            raise RequestError(f"party {deal.request.me} asks for other numbers than party {request.me}")
        if request.me in deal.asked:
            raise RequestError(f"party {request.me} asks twice for the same numbers")
        deal.asked.add(request.me)
        everyone = set(range(len(request.parties)))
        if deal.asked == everyone:
            self._dealt.add(key)
            del self._deals[key]
            deal.packages = asyncio.create_task(asyncio.to_thread(request.order.deal))
            deal.complete.set()
        try:
            async with asyncio.timeout(self._patience):
                await deal.complete.wait()
        except TimeoutError:
            self._deals.pop(key, None)
            missing = sorted(everyone - deal.asked)
            raise RequestError(f"parties {missing} have not asked for numbers within {self._patience:g} s") from None
        assert deal.packages is not None
        return (await deal.packages)[request.me]

    def _read(self, text: bytes, own: str) -> DealRequest:
        try:
            request = DealRequest.model_validate_json(text)
        except ValidationError as error:
            faults = {f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()}
            raise RequestError(f"the request cannot be read: {'; '.join(sorted(faults))}") from None
        parties, order = request.parties, request.order
        strangers = [party for party, name in enumerate(parties) if name not in self._known]
        if strangers:
            raise RequestError(f"the dealer has no certificate of parties {strangers}")
        if not request.me < len(parties) or parties[request.me] != own:
            raise RequestError(f"party {request.me} has another certificate")
        if len({*parties}) != len(parties) or len(order.columns) != len(parties) or order.labelled >= len(parties):
            raise RequestError("the numbers of parties, of certificates and of columns differ")
        size = 8 * (order.corrections + (order.rows + order.test_rows) * sum(order.columns))
        if size > MAX_BYTES:
            raise RequestError(f"the segment needs {size:,} bytes, above {MAX_BYTES:,}: lower vfb2.epochs")
        return request


@dataclass(frozen=True)
class DealerAccess:
    """A party's access to its dealer.

    Attributes:
        address: The TCP address.
        certificate: The certificate (DER).
    """

    address: Address
    certificate: bytes


async def fetch_package(access: DealerAccess, identity: Identity, request: DealRequest, limits: Limits) -> bytes:
    """Return a party's package from a dealer.

    Args:
        access: The access to the dealer.
        identity: The party's certificate and key.
        request: The request.
        limits: The party's time limits.

    Raises:
        PartyError: The dealer cannot be reached, has another certificate, or refuses the request.
    """
    context = client_context(identity, [access.certificate])
    with _faults(request.me, access.address):
        async with asyncio.timeout(limits.join):
            reader, writer = await asyncio.open_connection(access.address.host, access.address.port, ssl=context)
        with closing(writer):
            text = request.model_dump_json().encode()
            writer.write(_LENGTH.pack(len(text)) + text)
            async with asyncio.timeout(2 * PATIENCE):
                good, length = _ANSWER.unpack(await reader.readexactly(_ANSWER.size))
            if good:
                async with asyncio.timeout(2 * PATIENCE):
                    return await reader.readexactly(min(length, MAX_BYTES))
            words = (await reader.readexactly(min(length, _MAX_REQUEST))).decode(errors="replace")
            raise PartyError(request.me, f"its dealer refuses: {words}", "its dealer refuses")


@contextmanager
def _faults(me: int, address: Address) -> Iterator[None]:
    """Turn errors of a connection into errors of the party."""
    try:
        yield
    except (OSError, EOFError) as error:
        reason = "the certificates do not fit" if isinstance(error, ssl.SSLError) else ""
        reason = reason or (reason_of(error) if isinstance(error, OSError) else "it closed the connection")
        words = "cannot get random numbers of its dealer"
        raise PartyError(me, f"{words} at {address.text}: {reason}", words) from error
