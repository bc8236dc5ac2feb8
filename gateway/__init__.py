"""HTTP in, answers out; settings, wiring and the command line."""
