"""The class that Spark finds. Its processes find it again by its name in this module."""

from typing import Any

from pyspark.sql.datasource import DataSource

from pyspark_jstream.packages import own


class DefaultSource(DataSource):
    """The data source `jstream`; what it does is in `datasource.source`."""

    @classmethod
    def name(cls) -> str:
        return "jstream"

    def schema(self) -> Any:
        return own("datasource.source").schema(self.options)

    def reader(self, schema: Any) -> Any:
        return own("datasource.source").reader(self.options, schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return own("datasource.source").writer(self.options, schema, overwrite)

    def streamReader(self, schema: Any) -> Any:
        return own("datasource.source").stream_reader(self.options, schema)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return own("datasource.source").stream_writer(self.options, schema, overwrite)
