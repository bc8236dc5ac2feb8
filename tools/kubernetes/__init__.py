"""A real Kubernetes control plane without containers, and Helm, for the tests of the chart."""
