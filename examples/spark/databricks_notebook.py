# Databricks notebook source
# MAGIC %md
# MAGIC # Digits on the workers of a Databricks cluster
# MAGIC Import this file as a notebook, and attach a cluster with dedicated access and two workers.
# MAGIC `STORE` is a folder in a volume of Unity Catalog, which the cluster may also have as an
# MAGIC environment variable. First of all, name the wheel of Horovod that you have uploaded.

# COMMAND ----------

# MAGIC %pip install "/Volumes/main/default/wheels/horovod-….whl[spark]" torch scikit-learn

# COMMAND ----------

import os

import torch
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

from horovod.spark import HorovodRunner
from horovod.spark.common.store import Store
from horovod.spark.torch import TorchEstimator

STORE = os.environ.get("STORE", "/Volumes/main/default/digits")
NUM_PROC = 2

spark = SparkSession.builder.getOrCreate()  # a notebook has it already

# COMMAND ----------

# MAGIC %md
# MAGIC ## A training function, by `HorovodRunner`
# MAGIC `HorovodRunner(np=-2)` tries it on the driver first, `np=0` takes all slots of the cluster.

# COMMAND ----------


def train(epochs: int, lr: float) -> float:
    """What each rank does; returns the accuracy on the test images."""
    import torch
    from sklearn.datasets import load_digits

    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(1)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    test = torch.arange(len(labels)) % 5 == 0
    own = (~test).nonzero().flatten()[: (~test).sum() // hvd.size() * hvd.size()]
    own = own[hvd.rank() :: hvd.size()]  # equally many on all ranks
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for epoch in range(epochs):
        for batch in own[torch.randperm(len(own))].split(32):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss:.4f}")
    right = (model(images[test]).argmax(1) == labels[test]).float().mean()
    return float(hvd.allreduce(right, name="accuracy"))


accuracy = HorovodRunner(np=NUM_PROC, driver_log_verbosity="all").run(train, epochs=4, lr=0.02)
print(f"test accuracy of the function: {accuracy:.2%}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## An estimator on a table
# MAGIC Its data, checkpoints and logs go to the volume.

# COMMAND ----------

images, labels = load_digits(return_X_y=True)
rows = [
    (Vectors.dense(image / 16), int(label)) for image, label in zip(images, labels, strict=True)
]
frame = spark.createDataFrame(rows, ["pixels", "digit"])
train_rows, test_rows = frame.randomSplit([0.8, 0.2], seed=1)

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
estimator = TorchEstimator(
    num_proc=NUM_PROC,
    store=Store.create(STORE),
    model=model,
    optimizer=torch.optim.Adam(model.parameters(), lr=0.004),
    loss=torch.nn.functional.cross_entropy,
    input_shapes=[[-1, 64]],
    feature_cols=["pixels"],
    label_cols=["digit"],
    epochs=6,
)
fitted = estimator.fit(train_rows)
found = [
    row.digit == row.digit__output.toArray().argmax()
    for row in fitted.transform(test_rows).select("digit", "digit__output").collect()
]
print(f"test accuracy: {sum(found) / len(found):.2%} on {NUM_PROC} rank(s)")
