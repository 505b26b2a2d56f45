"""Trains a PyTorch model on a DataFrame of handwritten digits with TorchEstimator.

    python examples/spark/digits_torch.py --num-proc 2

`spark-submit --master …` runs it on a cluster, where all hosts must see the folder of --store.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession
from sklearn.datasets import load_digits

from horovod.spark.common.store import Store
from horovod.spark.torch import TorchEstimator


def digits(spark: SparkSession) -> list[DataFrame]:
    """Images and their digits, for training and for tests."""
    images, labels = load_digits(return_X_y=True)
    pairs = zip(images / 16, labels, strict=True)
    rows = [(Vectors.dense(image), int(label)) for image, label in pairs]
    return spark.createDataFrame(rows, ["pixels", "digit"]).randomSplit([0.8, 0.2], seed=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--master", help="of Spark, such as local[2]; None as configured")
    parser.add_argument("--num-proc", type=int, default=2, help="number of ranks")
    parser.add_argument("--min-num-proc", type=int, help="go on with as few when ranks are lost")
    parser.add_argument("--max-num-proc", type=int, help="take in as many when executors come")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="for one rank")
    parser.add_argument("--store", default=tempfile.gettempdir() + "/digits", help="path or URL")
    args = parser.parse_args()

    builder = SparkSession.builder.appName("digits")
    spark = (builder.master(args.master) if args.master else builder).getOrCreate()
    train, test = digits(spark)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    estimator = TorchEstimator(
        num_proc=args.num_proc,
        min_num_proc=args.min_num_proc,
        max_num_proc=args.max_num_proc,
        store=Store.create(args.store),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9),
        loss=torch.nn.functional.cross_entropy,
        metrics=[[lambda output, digit: (output.argmax(1) == digit).float().mean()]],
        input_shapes=[[-1, 64]],
        feature_cols=["pixels"],
        label_cols=["digit"],
        validation=0.1,
        batch_size=args.batch_size,
        epochs=args.epochs,
    )
    predictions = estimator.fit(train).transform(test).select("digit", "digit__output").collect()
    right = [row.digit__output.toArray().argmax() == row.digit for row in predictions]
    print(f"test accuracy: {sum(right) / len(right):.2%} on {args.num_proc} rank(s)")
    spark.stop()


if __name__ == "__main__":
    main()
