"""Research on top of the apps: the in-process engine, references and the command line."""

PAGE = "see docs/simulations.md"
