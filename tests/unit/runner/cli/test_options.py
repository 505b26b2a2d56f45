from __future__ import annotations

import pytest

from horovod.errors import UsageError
from horovod.runner.cli.options import OPTIONS, parse
from horovod.runner.starting.modes import NAMES, Mode


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
    found = parse(line.split())
    assert found.values.num_proc == 4
    assert found.command == tuple(command.split())


@pytest.mark.parametrize("line", ["-H a:1,b:2", "-Ha:1,b:2", "--hosts a:1,b:2", "--hosts=a:1,b:2"])
def test_spellings_of_hosts(line: str) -> None:
    found = parse([*line.split(), "x"])
    assert found.values.hosts == "a:1,b:2"
    assert found.command == ("x",)


def test_long_options_may_be_abbreviated() -> None:
    options = parse(["--fusion-thresh", "2", "--num-p", "3", "x"]).values
    assert options.fusion_threshold_mb == 2
    assert options.num_proc == 3


def test_a_value_may_start_with_a_dash_and_hold_spaces() -> None:
    found = parse(["--output-filename", "-dir with space", "--cache-capacity", "-1", "x"])
    options = found.values
    assert options.output_filename == "-dir with space"
    assert options.cache_capacity == -1
    assert found.command == ("x",)


def test_interfaces_add_up() -> None:
    options = parse(["--network-interface", "a", "--network-interfaces", "b,c", "x"]).values
    assert options.network_interfaces == ["a", "b,c"]


def test_flags_of_old_scripts_are_accepted() -> None:
    found = parse(["--gloo", "--disable-cache", "--tcp", "-np", "1", "x"])
    found.check(Mode.FIXED)
    assert found.command == ("x",)


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
        ("-H a:1 --hostfile f x", "are mutually exclusive"),
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


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.CHECK])
def test_each_option_is_honored_or_refused(mode: Mode) -> None:
    for option in OPTIONS[1:]:  # the first one is --help
        choices = option.more.get("choices", ("1",))
        has_value = option.more.get("action") != "store_true"
        is_optional = option.more.get("nargs") == "?"
        number = option.more.get("nargs", 1) if has_value and not is_optional else 0
        values = [choices[0]] * number
        line = parse([option.names[-1], *values])
        if mode in option.modes:
            line.check(mode)
            continue
        with pytest.raises(UsageError) as caught:
            line.check(mode)
        assert str(caught.value).startswith(f"{option.names[-1]} is not for {NAMES[mode]}")


def test_a_refusal_names_the_modes_and_what_chooses_them() -> None:
    with pytest.raises(UsageError) as caught:
        parse(["--max-np", "3", "x"]).check(Mode.FIXED)
    assert str(caught.value) == (
        "--max-np is not for jobs of a fixed size: it is for elastic jobs (--min-np, "
        "--host-discovery-script or --join-file)"
    )
    with pytest.raises(UsageError, match=r"a command is not for hosts that join a job .*: leave"):
        parse(["--join", "f", "x"]).check(Mode.JOIN)
