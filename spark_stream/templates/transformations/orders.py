"""Orders as a streaming table, and what was paid by region as a materialized view over it.

Spark runs each flow with AvailableNow: what is there when the run begins is read, once, also over many runs.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
SCHEMA = "order_id STRING, customer_id STRING, amount DOUBLE, currency STRING, event STRING, time TIMESTAMP"


@dp.table(comment="each step of each order, as it came")
def orders() -> DataFrame:
    messages = (
        spark.readStream.format("jstream")
        .option("stream", "ORDERS")
        .option("subject", "orders.>")
        .option("startingOffsets", "earliest")
        .load(os.environ["JSTREAM_STORE"])
    )
    body = F.from_json(F.col("data").cast("string"), SCHEMA)
    rows = messages.select("sequence", "subject", F.col("timestamp").alias("stored"), body.alias("body"))
    region = F.split("subject", "[.]")[2].alias("region")
    return rows.where("body.order_id IS NOT NULL").select("sequence", "stored", region, "body.*")


@dp.materialized_view(comment="what was paid, by region and currency")
def paid_by_region() -> DataFrame:
    paid = spark.read.table("orders").where("event = 'paid'")
    return paid.groupBy("region", "currency").agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
