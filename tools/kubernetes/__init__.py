"""A real Kubernetes control plane without containers, with Helm and KEDA, for the tests of the chart."""
