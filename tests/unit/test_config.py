"""Settings from the environment: defaults, every launcher's rank, and messages for wrong values."""

from __future__ import annotations

import dataclasses
import re
import socket
from pathlib import Path

import pytest
from told import told

import horovod
from horovod._settings import TABLE
from horovod._settings.config import NATIVE_LOG_LEVELS, Config
from horovod._settings.honored import LOG_LEVELS, MIB
from horovod._settings.reader import SettingsReader
from horovod._settings.setting import Setting, Status
from horovod.errors import StartError

STORE = {
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "4711",
}


def test_without_any_variable_it_is_a_job_of_one_rank() -> None:
    assert Config.from_env({}) == Config(hostname=socket.gethostname())


def test_everything_the_launcher_sets_is_read() -> None:
    config = Config.from_env(
        STORE
        | {
            "HOROVOD_RANK": "5",
            "HOROVOD_SIZE": "8",
            "HOROVOD_LOCAL_RANK": "1",
            "HOROVOD_LOCAL_SIZE": "4",
            "HOROVOD_CROSS_RANK": "1",
            "HOROVOD_CROSS_SIZE": "2",
            "HOROVOD_HOSTNAME": "node1",
            "HOROVOD_SECRET_FILE": "/run/secret",
            "HOROVOD_START_TIMEOUT": "7.5",
            "HOROVOD_FUSION_THRESHOLD": "0",
            "HOROVOD_CACHE_CAPACITY": "2",
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "3",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9",
            "HOROVOD_LOG_LEVEL": "DEBUG",
            "HOROVOD_ALLREDUCE_ALGORITHM": "Ring",
            "HOROVOD_GENERATION": "3",
        }
    )
    assert config == Config(
        rank=5,
        size=8,
        local_rank=1,
        local_size=4,
        cross_rank=1,
        cross_size=2,
        is_placed=True,
        hostname="node1",
        rendezvous_addr="10.0.0.1",
        rendezvous_port=4711,
        secret_file="/run/secret",
        start_timeout_s=7.5,
        fusion_threshold=0,
        fusion_threshold_is_set=True,
        cache_capacity=2,
        stall_check_time_s=3.0,
        stall_shutdown_time_s=9.0,
        log_level="debug",
        allreduce_algorithm="ring",
        generation=3,
    )


def test_what_reports_tunes_and_checks_is_read() -> None:
    config = Config.from_env(
        {
            "HOROVOD_TIMELINE": "DYNAMIC",
            "HOROVOD_TIMELINE_MARK_CYCLES": "1",
            "HOROVOD_AUTOTUNE": "1",
            "HOROVOD_AUTOTUNE_LOG": "tuning.csv",
            "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0",
            "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "5",
            "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "6",
            "HOROVOD_DETERMINISTIC": "1",
            "HOROVOD_CHECK_IN_SYNC_STEPS": "100",
            "HOROVOD_DISABLE_GROUP_FUSION": "1",
            "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
            "HOROVOD_LOG_HIDE_TIME": "1",
            "HOROVOD_THREAD_AFFINITY": "3, 5",
            "HOROVOD_NUM_STREAMS": "4",
        }
    )
    assert config == Config(
        hostname=socket.gethostname(),
        timeline="DYNAMIC",
        timeline_mark_cycles=True,
        autotune=True,
        autotune_log="tuning.csv",
        autotune_warmup_samples=0,
        autotune_steps_per_sample=5,
        autotune_max_samples=6,
        deterministic=True,
        check_in_sync_steps=100,
        disable_group_fusion=True,
        log_hide_time=True,
        thread_affinity=(3, 5),
        num_streams=4,
    )


def test_an_algorithm_that_deterministic_mode_rules_out_is_refused() -> None:
    words = {"HOROVOD_DETERMINISTIC": "1"}
    for word in ("auto", "direct", "exchange"):
        assert Config.from_env(words | {"HOROVOD_ALLREDUCE_ALGORITHM": word}).deterministic
    for word in ("ring", "doubling", "trees", "hierarchical"):
        with pytest.raises(StartError, match=f"ALGORITHM={word}.*DETERMINISTIC"):
            Config.from_env(words | {"HOROVOD_ALLREDUCE_ALGORITHM": word})


def test_each_log_level_has_its_place_in_the_engine() -> None:
    assert tuple(NATIVE_LOG_LEVELS) == LOG_LEVELS
    assert sorted(NATIVE_LOG_LEVELS.values()) == list(NATIVE_LOG_LEVELS.values())


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", str(2 * MIB))
    assert Config.from_env().fusion_threshold == 2 * MIB


def test_empty_and_padded_variables() -> None:
    config = Config.from_env({"HOROVOD_RANK": "", "HOROVOD_CACHE_CAPACITY": " 7 "})
    assert (config.rank, config.size, config.cache_capacity) == (0, 1, 7)


@pytest.mark.parametrize(
    ("rank", "size", "local_rank", "local_size"),
    [
        ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ],
)
def test_the_rank_is_read_from_what_the_launcher_set(
    rank: str, size: str, local_rank: str, local_size: str
) -> None:
    environ = STORE | {rank: "3", size: "4", local_rank: "1", local_size: "2"}
    config = Config.from_env(environ)
    assert (config.rank, config.size, config.local_rank, config.local_size) == (3, 4, 1, 2)


def test_our_own_variables_come_first() -> None:
    environ = STORE | {"PMI_RANK": "0", "PMI_SIZE": "9", "HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}
    assert Config.from_env(environ).size == 2


@pytest.mark.parametrize(
    ("present", "absent"),
    [
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
        ("HOROVOD_LOCAL_SIZE", "HOROVOD_LOCAL_RANK"),
        ("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ],
)
def test_half_a_pair_is_refused(present: str, absent: str) -> None:
    with pytest.raises(StartError, match=f"{present} is set but {absent} is not"):
        Config.from_env({present: "0"})


@pytest.mark.parametrize(("rank", "size"), [("2", "2"), ("-1", "2"), ("0", "0"), ("0", "-1")])
def test_a_rank_outside_of_its_size_is_refused(rank: str, size: str) -> None:
    with pytest.raises(StartError, match="HOROVOD_"):
        Config.from_env(STORE | {"HOROVOD_RANK": rank, "HOROVOD_SIZE": size})


def test_a_rank_without_a_store_is_told_to_use_the_launcher() -> None:
    with pytest.raises(StartError, match=r"rank 1 of 2 .* horovodrun"):
        Config.from_env({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "lots"),
        ("HOROVOD_FUSION_THRESHOLD", "-1"),
        ("HOROVOD_FUSION_THRESHOLD", "1.5"),
        ("HOROVOD_CACHE_CAPACITY", "(None,)"),
        ("HOROVOD_START_TIMEOUT", "0"),
        ("HOROVOD_START_TIMEOUT", "-3"),
        ("HOROVOD_START_TIMEOUT", "inf"),
        ("HOROVOD_START_TIMEOUT", "nan"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "nan"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "-1"),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "soon"),
        ("HOROVOD_LOG_LEVEL", "loud"),
        ("HOROVOD_ALLREDUCE_ALGORITHM", "rings"),
        ("HOROVOD_DETERMINISTIC", "maybe"),
        ("HOROVOD_DETERMINISTIC", "²"),
        ("HOROVOD_GENERATION", "-1"),
        ("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "0"),
        ("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "0"),
        ("HOROVOD_CHECK_IN_SYNC_STEPS", "-1"),
        ("HOROVOD_GLOO_TIMEOUT_SECONDS", "0"),
        ("HOROVOD_THREAD_AFFINITY", "0,x"),
        ("HOROVOD_NUM_STREAMS", "0"),
        ("HOROVOD_THREAD_AFFINITY", "0,-1"),
        ("HOROVOD_CONTROLLER", "carrier-pigeon"),
        ("HOROVOD_CPU_OPERATIONS", "ccl"),
    ],
)
def test_a_value_without_sense_is_named(name: str, value: str) -> None:
    with pytest.raises(StartError, match=name):
        Config.from_env({name: value})


def test_no_field_is_dead() -> None:
    package = Path(horovod.__file__).parent
    sources = "\n".join(path.read_text() for path in package.rglob("*.py"))
    names = [each.name for each in dataclasses.fields(Config)]
    assert [name for name in names if not re.search(rf"\.{name}\b", sources)] == []


@pytest.mark.parametrize("port", ["", "0", "-1", "65536"])
def test_a_store_needs_a_port(port: str) -> None:
    with pytest.raises(StartError, match="HOROVOD_GLOO_RENDEZVOUS_PORT"):
        Config.from_env(STORE | {"HOROVOD_GLOO_RENDEZVOUS_PORT": port})


@pytest.mark.parametrize("value", ["1", "2", "-1", "true", "YES", "On"])
def test_flags_that_are_on(value: str) -> None:
    assert Config.from_env({"HOROVOD_DETERMINISTIC": value}).deterministic


@pytest.mark.parametrize("value", ["", "0", "false", "No", "off"])
def test_flags_that_are_off(value: str) -> None:
    assert not Config.from_env({"HOROVOD_DETERMINISTIC": value}).deterministic


def test_the_stall_check_can_be_turned_off() -> None:
    environ = {"HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_STALL_CHECK_TIME_SECONDS": "5"}
    assert Config.from_env(environ).stall_check_time_s == 0.0


def test_the_stall_check_follows_the_job_unless_it_is_told() -> None:
    assert Config.from_env({}).stall_check_time_s is None
    assert Config.from_env({"HOROVOD_STALL_CHECK_TIME_SECONDS": "0"}).stall_check_time_s == 0.0
    environ = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "5"}
    assert Config.from_env(environ).stall_shutdown_time_s == 5.0


def test_a_shutdown_before_the_report_is_ignored() -> None:
    environ = {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "9",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3",
    }
    with told(r"SHUTDOWN_TIME_SECONDS=3 is ignored.* 9 s"):
        assert Config.from_env(environ).stall_shutdown_time_s == 0.0


def test_too_few_cores_bind_nothing() -> None:
    environ = STORE | {
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_THREAD_AFFINITY": "1",
    }
    with told("1 cores for the 2 ranks"):
        assert Config.from_env(environ).thread_affinity == ()


def test_a_misspelt_variable_gets_a_suggestion_on_rank_0_only() -> None:
    environ = {"HOROVOD_FUSION_TRESHOLD": "1"}
    with told("did you mean HOROVOD_FUSION_THRESHOLD"):
        Config.from_env(environ)
    with told():
        Config.from_env(STORE | environ | {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"})


def test_names_of_others_are_left_alone() -> None:
    with told():
        Config.from_env({"NCCL_DEBUG": "INFO", "PATH": "/bin", "MY_HOROVOD_HOME": "/opt"})


@pytest.mark.parametrize(
    "setting",
    [s for s in TABLE.values() if s.status in (Status.WITHOUT_EFFECT, Status.BUILD)],
    ids=lambda setting: setting.name,
)
def test_what_has_no_effect_is_accepted_in_silence(setting: Setting) -> None:
    environ = {setting.name: str(setting.default) or "1"}
    with told():
        assert Config.from_env(environ) == Config.from_env({})


def test_numbers_outside_of_their_bounds_are_refused() -> None:
    for name, text, words in (
        ("HOROVOD_NUM_STREAMS", "0", "is too small: it must be at least 1"),
        ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "1.5", "is too large: it must be at most 1"),
    ):
        with pytest.raises(StartError, match=rf"{name}={text} {words}"):
            SettingsReader({name: text}).value(name)


def test_old_controllers_mean_the_engine() -> None:
    with told():
        Config.from_env({"HOROVOD_CONTROLLER": "gloo"})
        Config.from_env({"HOROVOD_CONTROLLER": "Native"})
    with told("HOROVOD_CONTROLLER=mpi is understood as native"):
        assert Config.from_env({"HOROVOD_CONTROLLER": "MPI"}).cpu_operations == "native"


@pytest.mark.parametrize("name", ["HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"])
def test_libraries_that_are_not_used_are_refused(name: str) -> None:
    with pytest.raises(StartError, match=f"{name}='ccl'.*unset it"):
        Config.from_env({name: "ccl"})


def test_what_moves_the_data_is_chosen() -> None:
    assert Config.from_env({"HOROVOD_CPU_OPERATIONS": "Native"}).cpu_operations == "native"
    assert Config.from_env({"HOROVOD_CPU_OPERATIONS": "MPI"}).cpu_operations == "mpi"
    # As our launcher sets it on every rank.
    with told():
        Config.from_env({"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"})
    with told("HOROVOD_CPU_OPERATIONS=gloo is understood as native"):
        Config.from_env({"HOROVOD_CPU_OPERATIONS": "gloo"})


def test_mpi_takes_no_advice_on_algorithms() -> None:
    over_mpi = {"HOROVOD_CPU_OPERATIONS": "mpi"}
    with told("HOROVOD_ALLREDUCE_ALGORITHM=ring is ignored"):
        Config.from_env(over_mpi | {"HOROVOD_ALLREDUCE_ALGORITHM": "ring"})
    with pytest.raises(StartError, match="HOROVOD_DETERMINISTIC=1 asks for equal reruns"):
        Config.from_env(over_mpi | {"HOROVOD_DETERMINISTIC": "1"})


def test_a_deprecated_timeout_gives_way_to_its_successor() -> None:
    older = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "90"}
    with told("use HOROVOD_START_TIMEOUT"):
        assert Config.from_env(older).start_timeout_s == 90.0
    with told("deprecated"):
        assert Config.from_env(older | {"HOROVOD_START_TIMEOUT": "5"}).start_timeout_s == 5.0


def test_a_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().rank = 1  # type: ignore[misc]
