"""Trains a PyTorch model as the last stage of a Spark pipeline, saves the pipeline and loads it.

    python examples/spark/pipeline.py --num-proc 2

`spark-submit --master …` runs it on a cluster, where all hosts must see the folder of --store.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.sql import SparkSession
from sklearn.datasets import load_breast_cancer

from horovod.spark.common.store import Store
from horovod.spark.torch import TorchEstimator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--master", help="of Spark, such as local[2]; None as configured")
    parser.add_argument("--num-proc", type=int, default=2, help="number of ranks")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--store", default=tempfile.gettempdir() + "/tumors", help="path or URL")
    args = parser.parse_args()

    builder = SparkSession.builder.appName("pipeline")
    spark = (builder.master(args.master) if args.master else builder).getOrCreate()
    tumors = load_breast_cancer(as_frame=True).frame
    names = [name for name in tumors.columns if name != "target"]
    train, test = spark.createDataFrame(tumors).randomSplit([0.8, 0.2], seed=1)

    model = torch.nn.Sequential(torch.nn.Linear(len(names), 1), torch.nn.Sigmoid())
    estimator = TorchEstimator(
        num_proc=args.num_proc,
        store=Store.create(args.store),
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.02),
        loss=lambda output, label: torch.nn.functional.binary_cross_entropy(output, label.float()),
        input_shapes=[[-1, len(names)]],
        feature_cols=["scaled"],
        label_cols=["target"],
        batch_size=16,
        epochs=args.epochs,
    )
    stages = [
        VectorAssembler(inputCols=names, outputCol="features"),
        StandardScaler(inputCol="features", outputCol="scaled", withMean=True),
        estimator,
    ]
    fitted = Pipeline(stages=stages).fit(train)
    fitted.write().overwrite().save(f"{args.store}/pipeline")

    loaded = PipelineModel.load(f"{args.store}/pipeline")
    # A prediction is an integer, as the label is: the output of the model, rounded.
    predictions = loaded.transform(test).select("target", "target__output").collect()
    right = [row.target__output == row.target for row in predictions]
    print(f"test accuracy: {sum(right) / len(right):.2%} on {args.num_proc} rank(s)")
    spark.stop()


if __name__ == "__main__":
    main()
