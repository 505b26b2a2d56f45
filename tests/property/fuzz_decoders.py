"""Drives the tests of test_decoders.py by what they cover, with atheris in place of hypothesis.

    python tests/property/fuzz_decoders.py                  # what there is to be fuzzed
    python tests/property/fuzz_decoders.py jobs -max_total_time=60

Options behind the name are those of libFuzzer.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

try:
    import atheris
except ImportError:
    sys.exit("fuzzing of Python decoders is skipped: there is no atheris for this Python here")

with atheris.instrument_imports(include=["horovod"]):
    import test_decoders

TARGETS = {
    "hello": test_decoders.test_the_server_takes_a_right_hello_or_refuses,
    "proof": test_decoders.test_the_client_refuses_whatever_is_no_proof,
    "frames": test_decoders.test_frames_of_an_authenticated_connection,
    "messages": test_decoders.test_messages_of_the_store,
    "pipe": test_decoders.test_frames_between_launcher_and_agent,
    "job": test_decoders.test_the_job_of_an_agent,
    "roster": test_decoders.test_what_a_rank_publishes,
    "speeds": test_decoders.test_speeds_of_the_network,
    "hosts": test_decoders.test_lists_of_hosts,
    "hostfile": test_decoders.test_hostfiles,
}


def main() -> None:
    if len(sys.argv) < 2:
        print("\n".join(TARGETS))
        return
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target.hypothesis.fuzz_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
