"""Score a column of a Spark DataFrame with a `pandas_udf`: one model in each Python worker, batches by cost inside.

    python examples/spark_udf.py MODEL rows.jsonl scored.parquet

MODEL is any folder of a classifier that `hashee predict` takes, under a path that all executors see.
"""

import sys
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import pandas_udf

BATCH_TOKENS = 2048


def scored(frame: DataFrame, column: str, folder: str) -> DataFrame:
    """Return a DataFrame with the columns `label` and `score` of a text column beside its own."""

    @pandas_udf("label string, score double")
    def classify(batches: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
        # From an iterator, so that a worker opens the model once and not for every batch of rows.
        from hashee.bulk.scoring import open_scoring_model  # noqa: PLC0415
        from hashee.bulk.settings import ModelOptions  # noqa: PLC0415

        model = open_scoring_model(ModelOptions(folder), threads=1)
        for texts in batches:
            found = model.score(texts.tolist(), BATCH_TOKENS)
            yield pd.DataFrame({"label": [each["label"] for each in found], "score": [each["score"] for each in found]})

    return frame.withColumn("answer", classify(frame[column])).select(*frame.columns, "answer.label", "answer.score")


def main() -> None:
    """Score a file of JSON lines on a local Spark of two cores."""
    folder, rows, output = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        # Rows of an Arrow batch: as many as the model sorts by cost together.
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", 1024)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    frame = spark.read.json(rows).repartition(4)
    scored(frame, "text", folder).write.mode("overwrite").parquet(output)
    print(spark.read.parquet(output).groupBy("label").count().collect())
    spark.stop()


if __name__ == "__main__":
    main()
