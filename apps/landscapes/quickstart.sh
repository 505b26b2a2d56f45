#!/usr/bin/env bash
# From nothing to a painted sheet: quickstart.sh FOLDER RANKS TIME, such as build/landscapes 2 4m. Needs `landscapes` and
# `horovodrun` on PATH. A second run trains the same network for the same time again.
set -euo pipefail
folder=$1 ranks=$2 time=$3
data=$folder/data-64
resume=()

[ -d "$data" ] || landscapes render --out "$data" --count 2000 --size 64
[ ! -d "$folder/run" ] || resume=(--resume)
horovodrun -np "$ranks" landscapes train --data "$data" --out "$folder/run" --preset tiny64 \
  --steps 1000000 --time-budget "$time" --print-every 50 "${resume[@]}"
landscapes synth --checkpoint "$folder/run" --labels docs/sketch.png --style-id summer-noon --sheet --html \
  --out "$folder/painted"
echo "The sketch in 5 biomes at 5 hours: $folder/painted/sheet.png"
