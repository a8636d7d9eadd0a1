"""Pipelines: a stream, parsed and transformed, into a table or another stream, as one declarative file says."""
