#!/bin/sh
# Starts the {kind} of this folder. It makes missing keys, and the doctor checks the machine.
cd "$(dirname "$0")" && exec florilegium kit start . "$@"
