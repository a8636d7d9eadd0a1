"""What differs between the versions of Spark, as the installed one shows it."""

from pyspark.sql.datasource import DataSourceReader


def keeps_filters_apart() -> bool:
    """Return whether Spark keeps the filters that it pushes into one scan from all others of the same table.

    Until 4.3 it notes the read that was planned with a scan's filters in the table, which all scans of a frame or view
    share: `frame.where("sequence < 7")` makes `frame` itself lose rows. The change that notes it in the scan is the
    one that gave readers `pushLimit`; the JVM and its Python workers have both halves of it, or do not understand each
    other. Source: apache/spark, SPARK-58551, PythonScanBuilder.scala.
    """
    return hasattr(DataSourceReader, "pushLimit")
