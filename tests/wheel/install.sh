#!/usr/bin/env bash
# Installs a wheel where there is no compiler, and runs a job of two ranks with it.
#
#   tests/wheel/install.sh dist/horovod-….whl
set -euo pipefail
wheel=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

python -m venv venv
# Only what a shell script needs, and no c++, cc, gcc, clang or cmake.
mkdir bin
for tool in bash cat env rm sh; do ln -s "$(command -v "$tool")" bin/; done
export PATH="$folder/venv/bin:$folder/bin"
for tool in c++ cc gcc g++ clang cmake ninja make; do
  if command -v "$tool" >/dev/null; then echo "$tool is on the PATH" >&2; exit 1; fi
done

python -m pip install -qq --disable-pip-version-check --only-binary :all: "$wheel"
cat > ranks.py <<'EOF'
import array

from horovod import context
from horovod._native import Buffer

context.init()
values = array.array("f", [1.0 + context.rank()] * 1000)
buffer = Buffer(values.buffer_info()[0], "float32", (1000,))
context.global_group().allreduce([buffer], [buffer], name="values", keep=values).wait()
assert values[0] == values[-1] == 1.5, values[0]
EOF
horovodrun -np 2 python ranks.py

# No framework was there when it was built, nor is one here; the operations of TensorFlow are in it all the same.
python - <<'EOF'
from pathlib import Path

import horovod

assert (Path(horovod.__file__).parent / "libhorovod_tensorflow.so").exists()
try:
    import horovod.tensorflow
except ImportError as error:
    assert error.name == "tensorflow", error
EOF
python -c 'import horovod; print("horovod", horovod.__version__, "works from its wheel, without a compiler")'
