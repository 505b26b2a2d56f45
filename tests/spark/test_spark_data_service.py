"""Tasks of Spark run tf.data's service for a training job."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from horovod.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_tasks_prepare_data_until_the_service_is_shut_down(spark: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    from horovod.spark.tensorflow.compute_worker import main
    from horovod.tensorflow.data.compute_service import TfDataServiceConfig

    file = tmp_path / "compute.json"
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(main, 1, "compute", str(file), 300, None, True)
        config = TfDataServiceConfig.read(str(file), wait_for_file_creation=True)
        dataset = tf.data.Dataset.range(10).map(lambda number: 2 * number)
        dataset = dataset.send_to_data_service(config, 0, 1)
        assert sorted(dataset.as_numpy_iterator()) == list(range(0, 20, 2))
        with config.compute_client() as client:
            client.shutdown()
        serving.result(120)
    assert not file.exists()
    with pytest.raises(UsageError, match="2 tasks cannot be shared out evenly among 3"):
        main(3, "compute", str(file), serve_without_authentication=True)
