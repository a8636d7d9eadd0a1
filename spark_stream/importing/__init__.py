"""Imports of other servers' stores on Spark: tasks read block files and write blocks, the driver brings the streams."""
