"""The names and addresses in project files and kits. They become parts of paths and of commands, so both check them."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated

from pydantic import AfterValidator

from problems.errors import InputError
from vertical.transport.addresses import Address

SUPERLINK, AUTHORITY = "superlink", "authority"
NAMES = f"1 to 40 letters, digits and hyphens between them, and neither {SUPERLINK!r} nor {AUTHORITY!r}"
ADDRESSES = "host:port, an IPv6 host in brackets, with a port of 1 to 65535"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38}[A-Za-z0-9])?")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")


class KitError(InputError, ValueError):
    """A kit that cannot be used. The modules of a kit's start do not import PyTorch, as other errors' modules do."""


def _check_name(text: str) -> str:
    if not _NAME.fullmatch(text) or text in (SUPERLINK, AUTHORITY):
        raise ValueError(text)
    return text


def _check_host(text: str) -> str:
    if not _HOST.fullmatch(text):
        ip_address(text)
    return text


def _check_address(text: str) -> str:
    _check_host(Address("tcp", text).host)
    return text


Name = Annotated[str, AfterValidator(_check_name)]
Host = Annotated[str, AfterValidator(_check_host)]
AddressText = Annotated[str, AfterValidator(_check_address)]
