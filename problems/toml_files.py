"""A reader of TOML files that accepts a byte order mark and Windows' line ends, which some editors write."""

import codecs
import tomllib
from pathlib import Path
from typing import Any

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: The path of a regular file; reading a pipe could wait for ever. "~" is the user's folder.

    Raises:
        OSError: The file does not exist, is a folder or a device, or cannot be read.
        ValueError: The file is not UTF-8, or not TOML. The text names the line.
    """
    try:
        path = path.expanduser()
    except RuntimeError as error:  # "~name" of a user who does not exist
        raise ValueError(str(error)) from None
    if path.exists() and not path.is_file():
        raise IsADirectoryError(f"{path} is not a file")
    content = path.read_bytes()
    if content.startswith(_UTF_16):
        raise ValueError("UTF-16, but TOML is UTF-8: save the file as UTF-8")
    return tomllib.loads(content.decode("utf-8-sig") + "\n")  # otherwise an error in the last line has no number


def reason_of(error: OSError | ValueError) -> str:
    """Return the reason why `read_toml` failed, without the path."""
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 (byte {error.start + 1}): save the file as UTF-8"
    return (error.strerror or "not a file") if isinstance(error, OSError) else str(error)
