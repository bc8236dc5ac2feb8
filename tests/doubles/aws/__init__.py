"""A DOUBLE of AWS: the moto server, with plug-ins where moto has only the shape of a service."""
