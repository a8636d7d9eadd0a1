"""What pages show, as plain values that are JSON as they stand: no HTML, no HTTP."""
