"""Self-hosted servers: any OpenAI-compatible one, alone or as one of many replicas."""
