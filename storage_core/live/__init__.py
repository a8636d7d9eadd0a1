"""A client of live NATS servers: streams read as columns and written, without an event loop."""
