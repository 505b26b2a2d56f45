"""Settings of Spark for elastic jobs, as pairs for ``SparkConf.setAll``.

They say how often a task may fail, and whether Spark goes on using an executor or a node where
tasks have failed. The names are those of earlier versions; the keys are those of Spark 3.1 and
newer, ``spark.excludeOnFailure``.
"""

from __future__ import annotations

__all__ = [
    "SPARK_CONF_ALWAYS_RESTART_FAILED_TASK",
    "SPARK_CONF_BLACKLIST_DISABLED",
    "SPARK_CONF_BLACKLIST_ENABLED",
    "SPARK_CONF_DEFAULT_VALUES",
    "SPARK_CONF_DONT_REUSE_EXECUTOR_FOR_SAME_TASK",
    "SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR",
    "SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR_IN_APP",
    "SPARK_CONF_DONT_REUSE_FAILING_NODE",
    "SPARK_CONF_DONT_REUSE_FAILING_NODE_IN_APP",
    "SPARK_CONF_DONT_REUSE_NODE_FOR_SAME_TASK",
    "SPARK_CONF_MAX_INT",
    "SPARK_CONF_MAX_INT_MINUS_ONE",
    "SPARK_CONF_REUSE_EXECUTOR_ALWAYS_FOR_SAME_TASK",
    "SPARK_CONF_REUSE_EXECUTOR_ONCE_FOR_SAME_TASK",
    "SPARK_CONF_REUSE_FAILED_EXECUTOR",
    "SPARK_CONF_REUSE_FAILED_EXECUTOR_IN_APP",
    "SPARK_CONF_REUSE_FAILING_NODE",
    "SPARK_CONF_REUSE_FAILING_NODE_IN_APP",
    "SPARK_CONF_REUSE_NODE_ALWAYS_FOR_SAME_TASK",
    "SPARK_CONF_REUSE_NODE_ONCE_FOR_SAME_TASK",
]

_MOST = 2147483647


def _exclude(name: str, value: object) -> tuple[str, object]:
    return f"spark.excludeOnFailure.{name}", value


SPARK_CONF_MAX_INT = str(_MOST)
SPARK_CONF_MAX_INT_MINUS_ONE = str(_MOST - 1)

SPARK_CONF_ALWAYS_RESTART_FAILED_TASK = ("spark.task.maxFailures", SPARK_CONF_MAX_INT)

SPARK_CONF_BLACKLIST_DISABLED = _exclude("enabled", "false")
SPARK_CONF_BLACKLIST_ENABLED = _exclude("enabled", "true")

_IN_STAGE = "stage.maxFailedTasksPerExecutor"
SPARK_CONF_REUSE_FAILED_EXECUTOR = _exclude(_IN_STAGE, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR = _exclude(_IN_STAGE, "1")

_NODE_IN_STAGE = "stage.maxFailedExecutorsPerNode"
SPARK_CONF_REUSE_FAILING_NODE = _exclude(_NODE_IN_STAGE, SPARK_CONF_MAX_INT_MINUS_ONE)
SPARK_CONF_DONT_REUSE_FAILING_NODE = _exclude(_NODE_IN_STAGE, "1")

_OF_TASK = "task.maxTaskAttemptsPerExecutor"
SPARK_CONF_REUSE_EXECUTOR_ALWAYS_FOR_SAME_TASK = _exclude(_OF_TASK, SPARK_CONF_MAX_INT)
SPARK_CONF_REUSE_EXECUTOR_ONCE_FOR_SAME_TASK = _exclude(_OF_TASK, "2")
SPARK_CONF_DONT_REUSE_EXECUTOR_FOR_SAME_TASK = _exclude(_OF_TASK, "1")

_NODE_OF_TASK = "task.maxTaskAttemptsPerNode"
SPARK_CONF_REUSE_NODE_ALWAYS_FOR_SAME_TASK = _exclude(_NODE_OF_TASK, SPARK_CONF_MAX_INT_MINUS_ONE)
SPARK_CONF_REUSE_NODE_ONCE_FOR_SAME_TASK = _exclude(_NODE_OF_TASK, "2")
SPARK_CONF_DONT_REUSE_NODE_FOR_SAME_TASK = _exclude(_NODE_OF_TASK, "1")

_IN_APP = "application.maxFailedTasksPerExecutor"
SPARK_CONF_REUSE_FAILED_EXECUTOR_IN_APP = _exclude(_IN_APP, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR_IN_APP = _exclude(_IN_APP, "1")

_NODE_IN_APP = "application.maxFailedExecutorsPerNode"
SPARK_CONF_REUSE_FAILING_NODE_IN_APP = _exclude(_NODE_IN_APP, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILING_NODE_IN_APP = _exclude(_NODE_IN_APP, "1")

SPARK_CONF_DEFAULT_VALUES = {
    "spark.task.maxFailures": "4",
    **dict(
        [
            SPARK_CONF_BLACKLIST_DISABLED,
            _exclude(_IN_STAGE, "2"),
            _exclude(_NODE_IN_STAGE, "2"),
            _exclude(_OF_TASK, "1"),
            _exclude(_NODE_OF_TASK, "2"),
            _exclude(_IN_APP, "2"),
            _exclude(_NODE_IN_APP, "2"),
        ]
    ),
}
"""What Spark takes where nothing is set."""
