from __future__ import annotations

import pytest

from horovod.errors import UsageError
from horovod.runner.cli.options import parse


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("-np 4 python train.py", "python train.py"),
        ("-np 4 python train.py --verbose -np 9", "python train.py --verbose -np 9"),
        ("-np 4 -- --strange-command -x", "--strange-command -x"),
        ("-np=4 --verbose python -u -- x", "python -u -- x"),
        ("--num-proc=4 -- -- x", "-- x"),
        ("-np 4 - x", "- x"),
        ("-np 4", ""),
        ("-np 4 --", ""),
    ],
)
def test_the_command_is_left_untouched(line: str, command: str) -> None:
    options, rest = parse(line.split())
    assert options.num_proc == 4
    assert rest == command.split()


@pytest.mark.parametrize("line", ["-H a:1,b:2", "-Ha:1,b:2", "--hosts a:1,b:2", "--hosts=a:1,b:2"])
def test_spellings_of_hosts(line: str) -> None:
    options, rest = parse([*line.split(), "x"])
    assert options.hosts == "a:1,b:2"
    assert rest == ["x"]


def test_long_options_may_be_abbreviated() -> None:
    options, _ = parse(["--fusion-thresh", "2", "--num-p", "3", "x"])
    assert options.fusion_threshold_mb == 2
    assert options.num_proc == 3


def test_a_value_may_start_with_a_dash_and_hold_spaces() -> None:
    options, rest = parse(["--output-filename", "-dir with space", "--cache-capacity", "-1", "x"])
    assert options.output_filename == "-dir with space"
    assert options.cache_capacity == -1
    assert rest == ["x"]


def test_interfaces_add_up() -> None:
    options, _ = parse(["--network-interface", "a", "--network-interfaces", "b,c", "x"])
    assert options.network_interfaces == ["a", "b,c"]


def test_flags_of_old_scripts_are_accepted() -> None:
    _, rest = parse(["--gloo", "--disable-cache", "--tcp", "-np", "1", "x"])
    assert rest == ["x"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--hirarchical-allreduce x", "did you mean --hierarchical-allreduce"),
        ("--qqq x", "unknown option --qqq; see horovodrun --help"),
        ("-nq 2 x", "did you mean -np"),
        ("--num 2 x", "--num may mean --num-nccl-streams or --num-nodes or --num-proc"),
        ("-np", "-np needs a value"),
        ("-np four x", "invalid int value: 'four'"),
        ("--verbose=1 x", "--verbose takes no value"),
        ("--log-level LOUD x", "invalid choice"),
        ("-H a:1 --hostfile f x", "exclude each other"),
        ("--min-np two x", "invalid int value: 'two'"),
        ("--blacklist-cooldown-range 1", "--blacklist-cooldown-range needs 2 values"),
        ("--cooldown-range=1 2 x", "write --cooldown-range 1 2, without '='"),
        ("--ssh-port x y", "invalid int value: 'x'"),
    ],
)
def test_complaints_have_one_line(line: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
