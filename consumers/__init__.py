"""Take a job off the log, run it on a backend, conclude it."""
