"""The command ``florilegium``: engines that run a federation on this machine, and tools for finished runs."""

PAGE = "see docs/simulations.md"
