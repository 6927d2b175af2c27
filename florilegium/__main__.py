"""``python -m florilegium``: the command ``florilegium``."""

from florilegium.command import main

if __name__ == "__main__":
    main()
