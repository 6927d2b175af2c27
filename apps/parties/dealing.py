"""The command ``florilegium deal``: a third party hands out the random numbers of secret shares (`vertical.shares`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from logging import INFO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from vertical.shares.dealer import Dealer
    from vertical.transport.addresses import Address


def deal(
    listen: Annotated[str, typer.Option(help="The address at which the dealer listens: host:port.")],
    cert: Annotated[Path, typer.Option(help="The file of the dealer's certificate (PEM).", exists=True)],
    key: Annotated[Path, typer.Option(help="The file of its private key (PEM).", exists=True)],
    party: Annotated[list[Path], typer.Option(help="The file of a party's certificate. Repeat it.", exists=True)],
    password_env: Annotated[str, typer.Option(help="The variable with the password of the key.")] = "",
) -> None:
    """Deal the random numbers of shared-sgd to parties with known certificates, until the command is interrupted."""
    from vertical.shares.dealer import Dealer
    from vertical.transport.addresses import Address
    from vertical.transport.identity import Identity, read_certificates

    try:
        address = Address("tcp", listen)
        password = os.environ[password_env].encode() if password_env else None
        dealer = Dealer(Identity.from_files(cert, key, password), [read_certificates(path)[0] for path in party])
    except KeyError:
        raise typer.BadParameter(f"the environment has no variable {password_env}") from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(dealer, address))


async def _serve(dealer: Dealer, address: Address) -> None:
    from flwr.common import log

    from vertical.transport.addresses import reason_of

    try:
        server = await dealer.listen(address)
    except OSError as error:
        raise typer.BadParameter(f"cannot listen at {address.text}: {reason_of(error)}") from None
    async with server:
        log(INFO, "dealing at %s", address.text)
        await server.serve_forever()
