"""Every module path that scripts and libraries import: it works, or one sentence says what to do.

`AVAILABLE` lists what works. `TO_COME` and `GONE` list paths that are refused, with words of the
sentence that says what to use instead.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import runpy
import subprocess
import sys

import pytest

import horovod
from horovod._compat import absent

QUERIES = """
init shutdown is_initialized size local_size cross_size rank local_rank cross_rank is_homogeneous
mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built
cuda_built rocm_built start_timeline stop_timeline
"""
REDUCTIONS = "Average Sum Adasum Min Max Product"
SETS = "ProcessSet global_process_set add_process_set remove_process_set"
CALLBACKS = """
BroadcastGlobalVariablesCallback MetricAverageCallback LearningRateScheduleCallback
LearningRateWarmupCallback BestModelCheckpoint
"""
ELASTIC_CALLBACKS = """
run KerasState CommitStateCallback UpdateBatchStateCallback UpdateEpochStateCallback
"""

AVAILABLE = {
    "horovod": "__version__ run",
    "horovod.version": "__version__",
    "horovod.torch": "mpi_ops __version__ DistributedOptimizer",
    "horovod.torch.mpi_ops": f"""
        {QUERIES} {REDUCTIONS} {SETS} _basics
        allreduce allreduce_async allreduce_ allreduce_async_ grouped_allreduce
        grouped_allreduce_async grouped_allreduce_ grouped_allreduce_async_ sparse_allreduce_async
        allgather allgather_async grouped_allgather grouped_allgather_async broadcast
        broadcast_async broadcast_ broadcast_async_ alltoall alltoall_async reducescatter
        reducescatter_async grouped_reducescatter grouped_reducescatter_async
        join barrier poll synchronize
        check_num_rank_power_of_2 handle_average_backwards_compatibility
        """,
    "horovod.torch.functions": """
        broadcast_parameters broadcast_optimizer_state broadcast_object allgather_object
        """,
    "horovod.torch.compression": "Compression Compressor NoneCompressor FP16Compressor",
    "horovod.torch.optimizer": "DistributedOptimizer",
    "horovod.torch.sync_batch_norm": "SyncBatchNorm",
    "horovod.tensorflow": """
        mpi_ops __version__ DistributedGradientTape
        gpu_available split_list check_num_rank_power_of_2 handle_average_backwards_compatibility
        _allreduce _executing_eagerly _make_subgraph _cache vars_to_refs refs_to_vars
        """,
    "horovod.tensorflow.mpi_ops": f"""
        {QUERIES} {REDUCTIONS} {SETS} _basics
        allgather grouped_allgather broadcast broadcast_ alltoall join
        size_op local_size_op rank_op local_rank_op process_set_included_op
        _allreduce _alltoall_grad
        """,
    "horovod.tensorflow.functions": """
        broadcast_variables broadcast_object broadcast_object_fn allgather_object
        """,
    "horovod.tensorflow.compression": "Compression Compressor NoneCompressor FP16Compressor",
    "horovod.tensorflow.gradient_aggregation": "LocalGradientAggregationHelper",
    "horovod.tensorflow.gradient_aggregation_eager": "LocalGradientAggregationHelperEager",
    "horovod.tensorflow.sync_batch_norm": "SyncBatchNormalization",
    "horovod.tensorflow.util": """
        vars_to_refs refs_to_vars _executing_eagerly _make_subgraph _cache
        """,
    "horovod.keras": "__version__ callbacks",
    "horovod.keras.callbacks": CALLBACKS,
    "horovod.tensorflow.keras": "__version__ callbacks",
    "horovod.tensorflow.keras.callbacks": CALLBACKS,
    "horovod.data": "BaseDataLoader AsyncDataLoaderMixin",
    "horovod.data.data_loader_base": "BaseDataLoader AsyncDataLoaderMixin",
    "horovod.common": "",
    "horovod.common.exceptions": """
        HorovodInternalError HostsUpdatedInterrupt HorovodVersionMismatchError
        """,
    "horovod.common.process_sets": SETS,
    "horovod.common.util": """
        extension_available gpu_available mpi_built gloo_built nccl_built ddl_built ccl_built
        cuda_built rocm_built split_list num_rank_is_power_2 env
        """,
    "horovod.common.basics": "HorovodBasics",
    "horovod.runner": "run",
    "horovod.runner.common.util.hosts": """
        parse_hosts parse_host_files get_host_assignments HostInfo SlotInfo
        """,
    "horovod.common.elastic": "State ObjectState run_fn HostUpdateResult",
    "horovod.tensorflow.elastic": "run TensorFlowState TensorFlowKerasState ObjectState State",
    "horovod.keras.elastic": ELASTIC_CALLBACKS,
    "horovod.tensorflow.keras.elastic": ELASTIC_CALLBACKS,
    "horovod.torch.elastic": "run TorchState State ObjectState generation ElasticSampler Training",
    "horovod.torch.elastic.state": """
        TorchState StateHandler ModelStateHandler OptimizerStateHandler SamplerStateHandler
        get_handler_registry set_handler_registry ObjectState
        """,
    "horovod.torch.elastic.sampler": "ElasticSampler",
    "horovod.tensorflow.data.compute_service": """
        TfDataServiceConfig tf_data_service send_to_data_service compute_worker_fn
        """,
    "horovod.tensorflow.data.compute_worker": "main",
    "horovod.testing": "run_ranks ManualClock",
    "horovod.runner.elastic.discovery": "HostDiscovery HostDiscoveryScript FixedHosts",
}

ELASTIC = "start elastic jobs with `horovodrun -np 2 --min-np 1`"
# Installed in an environment of its own, too.
SPARK = r"^horovod\.spark needs PySpark, which is not installed: pip install"
# It cannot be beside the others: its NumPy is older than they take.
MXNET = r"^horovod\.mxnet needs MXNet 1\.9\.1.*install it in an environment of its own"

TO_COME = {
    "horovod.runner.elastic.settings": ELASTIC,
    "horovod.mxnet": MXNET,
    "horovod.mxnet.mpi_ops": MXNET,
    "horovod.mxnet.functions": MXNET,
    "horovod.mxnet.compression": MXNET,
    "horovod.spark": SPARK,
    "horovod.spark.keras": SPARK,
    "horovod.spark.torch": SPARK,
    "horovod.spark.lightning": SPARK,
    "horovod.spark.common.store": SPARK,
    "horovod.spark.common.backend": SPARK,
    "horovod.spark.common.estimator": SPARK,
    "horovod.spark.common.params": SPARK,
    "horovod.spark.common.util": SPARK,
}

NOTHING_TO_LOAD = "there is nothing to load"
LAUNCHER = r"use the command horovodrun, or the function horovod\.run\(\)"
GONE = {
    "horovod.run": "it is a function: write `from horovod import run`",
    "horovod.run.runner": "it is a function: write `from horovod import run`",
    "horovod.run.common.util.host_hash": "it is a function",
    "horovod.runner.http.http_server": "the store that horovodrun opens",
    "horovod.runner.common.util.secret": "horovodrun makes the job's secret",
    "horovod.runner.common.util.settings": r"arguments of horovod\.run\(\)",
    "horovod.runner.common.util.network": "through the store of horovodrun",
    "horovod.runner.common.service.task_service": "agents of horovodrun",
    "horovod.runner.driver.driver_service": "horovodrun --check",
    "horovod.runner.mpi_run": "horovodrun --mpi",
    "horovod.runner.js_run": "horovodrun --jsrun",
    "horovod.runner.gloo_run": LAUNCHER,
    "horovod.runner.util.threads": LAUNCHER,
    "horovod.runner.task_fn": "agents of horovodrun",
    "horovod.common.anything_else": r"use the module of the framework, such as horovod\.torch",
    "horovod.spark.task": SPARK,
    "horovod.spark.driver.mpirun_rsh": SPARK,
    "horovod.torch.mpi_lib": NOTHING_TO_LOAD,
    "horovod.torch.mpi_lib_v2": NOTHING_TO_LOAD,
    "horovod.tensorflow.mpi_lib": NOTHING_TO_LOAD,
    "horovod.mxnet.mpi_lib": MXNET,
}


@pytest.mark.parametrize("path", AVAILABLE)
def test_what_libraries_import_is_there(path: str) -> None:
    module = importlib.import_module(path)
    missing = [name for name in AVAILABLE[path].split() if not hasattr(module, name)]
    assert not missing
    assert set(getattr(module, "__all__", ())) <= set(dir(module)) | {"run"}


@pytest.mark.parametrize(("path", "sentence"), [*TO_COME.items(), *GONE.items()])
def test_what_is_not_there_says_what_to_use(path: str, sentence: str) -> None:
    with pytest.raises(ImportError, match=sentence) as caught:
        importlib.import_module(path)
    assert "\n" not in str(caught.value)
    assert path not in sys.modules


def test_every_family_of_modules_is_tried() -> None:
    """A row of the tables in the sources that no row here leads to would be untested."""
    tried = [*TO_COME, *GONE]
    for prefix in {**absent.TO_COME, **absent.GONE}:
        assert any(absent.hint_for(path) == absent.hint_for(prefix) for path in tried), prefix


def test_names_imported_from_a_package_are_explained_too() -> None:
    with pytest.raises(ImportError, match=SPARK):
        exec("from horovod import spark")
    with pytest.raises(ImportError, match=LAUNCHER):
        exec("from horovod.runner import gloo_run")


@pytest.mark.parametrize("adapter", ["torch", "tensorflow", "keras", "tensorflow.keras"])
def test_an_adapter_brings_elastic_along(adapter: str) -> None:
    hvd = importlib.import_module(f"horovod.{adapter}")
    assert callable(hvd.elastic.run)
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        getattr(hvd, "nothing")  # noqa: B009


def test_other_modules_are_missing_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'horovod\.nowhere'$"):
        importlib.import_module("horovod.nowhere")
    assert importlib.util.find_spec("horovod.nowhere") is None
    # As it would if Horovod were not installed.
    with pytest.raises(ModuleNotFoundError):
        importlib.util.find_spec("horovod.runner.mpi_run")


def test_a_module_that_is_run_is_explained() -> None:
    with pytest.raises(ImportError, match=LAUNCHER):
        runpy.run_module("horovod.runner.gloo_run", run_name="__main__")


def test_run_is_the_function_wherever_it_is_found() -> None:
    script = (
        "from horovod.runner import run\nimport horovod\nprint(run is horovod.run, run.__name__)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "run"]


def test_every_adapter_tells_the_version() -> None:
    for adapter in ("torch", "tensorflow", "keras", "tensorflow.keras", "version"):
        module = importlib.import_module(f"horovod.{adapter}")
        assert module.__version__ == horovod.__version__
    assert re.match(r"\d+\.\d+\.\d+", horovod.__version__)
