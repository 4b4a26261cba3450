"""The Spark session of all tests, and of the command that downloads its packages: `python session.py FOLDER`."""

import os
import pathlib
import sys
import tempfile

from pyspark.sql import SparkSession

# Table formats, for the version of Spark in requirements.txt.
PACKAGES = "io.delta:delta-spark_4.1_2.13:4.4.0,org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
# Spark has these itself.
EXCLUDED = "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime"
# A task can fail three times.
MASTER = "local[2,4]"


def create(ivy, folder):
    """Returns a session with Delta and Iceberg tables and an event log in `folder`."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = pathlib.Path(folder)
    (folder / "events").mkdir()
    settings = {
        "spark.jars.packages": PACKAGES,
        "spark.jars.excludes": EXCLUDED,
        "spark.jars.ivy": str(ivy),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": str(folder / "iceberg"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(folder / "events"),
        "spark.eventLog.compress": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "Europe/Stockholm",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
    }
    builder = SparkSession.builder.master(MASTER)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        create(sys.argv[1], folder).stop()
