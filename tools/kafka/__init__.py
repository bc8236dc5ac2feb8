"""A real Apache Kafka from its jars, for tests and drills."""
