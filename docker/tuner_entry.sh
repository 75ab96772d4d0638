#!/bin/sh
# fp4tune by the Python it was installed for, whatever the base image calls it and wherever that puts its scripts.
# exec, so that fp4tune is the process that `docker stop` asks to end: it keeps what it has found.
set -eu
exec "${FP4TUNE_PYTHON:-python3}" -c 'from fp4tune.api.cli import main; main()' "$@"
