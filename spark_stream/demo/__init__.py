"""The main job as one command, `make demo`: a JetStream store, through Spark, into a stream, into a table."""
