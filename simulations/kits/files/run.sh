#!/bin/sh
# Waits for all sites, starts a run with run.toml, and follows it. Run directories are in results/.
cd "$(dirname "$0")" && exec florilegium kit run . "$@"
