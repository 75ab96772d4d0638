#!/bin/sh
# Proves that the type check really looks into every room: plants an error in each and expects it to be found.
# usage: check_types_look.sh MYPY TYPING_FOLDER
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/fp4tune"
for room in kernels db tuner api; do
    cp -r "$2/fp4tune/$room/." "$work/fp4tune/$room"
    echo 'planted: int = "text"' > "$work/fp4tune/$room/planted.py"
done
echo 'from ..kernels.problem import parse_shape; planted: int = parse_shape("1x1x16")' > "$work/fp4tune/api/planted.py"
found=$(MYPYPATH="$work" "$1" --config-file pyproject.toml --cache-dir "$work/.cache" \
    -m fp4tune.kernels.planted -m fp4tune.db.planted -m fp4tune.tuner.planted -m fp4tune.api.planted 2>&1 || true)
count=$(printf '%s\n' "$found" | grep -c 'planted.py.*Incompatible types in assignment' || true)
if [ "$count" != 4 ]; then
    echo "The type check is blind: it found $count of 4 planted errors."
    printf '%s\n' "$found"
    exit 1
fi
echo "The type check sees all four rooms (4 of 4 planted errors found)."
