"""The entry point of ``python -m apps.doctor``."""

from apps.doctor.command import cli

if __name__ == "__main__":
    cli()
