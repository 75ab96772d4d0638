"""The command line, `fp4tune`."""
