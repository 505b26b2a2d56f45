"""What TensorFlow prints at each start stays out of the report of a failure."""

from __future__ import annotations

import pytest

from horovod.runner.supervision.failure import RankExit, cause, last_words
from horovod.runner.supervision.greetings import without_greetings

# As TensorFlow 2.13, 2.16 and 2.21 write them.
GREETINGS = """\
2024-01-08 10:11:12.345678: I tensorflow/core/util/port.cc:110] oneDNN custom operations are on.
2024-01-08 10:11:12.345678: I external/local_tsl/tsl/cuda/cudart_stub.cc:31] Could not find cuda
2024-01-08 10:11:12.345678: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable
2024-01-08 10:11:12.345678: W tensorflow/core/common_runtime/gpu/gpu_device.cc:2256] Cannot dlopen
2024-01-08 10:11:12.345678: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning
Skipping registering GPU devices...
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with ...
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795355204.651398    7753 port.cc:153] oneDNN custom operations are on. You may see
E0000 00:00:1795355204.651398    7753 cuda_blas.cc:1418] Unable to register cuBLAS factory
W0000 00:00:1795355204.651398    7753 computation_placer.cc:177] already registered
""".splitlines()

NEWS = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
2024-01-08 10:11:12.345678: W tensorflow/core/framework/op_kernel.cc:1839] OP_REQUIRES failed at
W0000 00:00:1795355204.651398    7753 op_kernel.cc:1839] OP_REQUIRES failed at cast_op.cc:122
F0000 00:00:1795355204.651398    7753 cuda_executor.cc:1] Check failed
ValueError: To enable the following instructions
""".splitlines()


@pytest.mark.parametrize("line", GREETINGS)
def test_a_line_of_each_start_is_left_out(line: str) -> None:
    assert without_greetings([line]) == ()


@pytest.mark.parametrize("line", NEWS)
def test_what_may_explain_a_failure_stays(line: str) -> None:
    assert without_greetings([line]) == (line,)


def test_a_report_holds_only_what_is_new() -> None:
    failure = RankExit(1, "a", 1, 0.0, (*GREETINGS, "ValueError: mine"))
    assert last_words(failure).splitlines()[1:] == ["    ValueError: mine"]
    killed = RankExit(1, "a", -15, 0.0, tuple(GREETINGS))
    assert cause(killed) + last_words(killed) == "rank 1 on a was killed by SIGTERM"
