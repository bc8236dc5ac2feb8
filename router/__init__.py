"""What a job is, where it goes, the log it travels on, and what became of it."""
