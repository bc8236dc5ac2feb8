"""Measures: what accepting costs, what a worker gets through, what the death of a broker does. Each runs by itself."""
