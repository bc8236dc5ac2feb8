"""Makes the schema of the Helm chart's values, with the settings that the code knows."""
