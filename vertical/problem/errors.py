"""Errors about a party's network."""

from problems.errors import InputError


class NetworkError(InputError, ValueError):
    """A network that cannot be made: an unknown name, or a module that does not fit."""
