#!/usr/bin/env bash
# From nothing to a painted sheet: quickstart.sh FOLDER RANKS TIME, such as build/landscapes 2 4m. Needs `landscapes` and
# `horovodrun` on PATH. What a run has finished is not made again by the next one.
set -euo pipefail
folder=$1 ranks=$2 time=$3
data=$folder/data-64

if [ ! -d "$data" ]; then
  landscapes render --out "$data" --count 3000 --size 64
fi
horovodrun -np "$ranks" landscapes train --data "$data" --preset tiny64 --time-budget "$time" --out "$folder/run"
landscapes synth --checkpoint "$folder/run" --labels docs/sketch.png --style-id summer-noon --sheet --html --out "$folder/painted"
echo "The sketch in 5 biomes at 5 hours: $folder/painted/sheet.png"
