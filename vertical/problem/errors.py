"""Errors about a party's network."""

from problems.errors import InputError


class NetworkError(InputError, ValueError):
    """A network that cannot be built: its name is unknown, or its module does not fit."""
