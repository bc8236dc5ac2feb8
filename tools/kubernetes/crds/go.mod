module pointsman/tools/kubernetes/crds

go 1.26.0

// Read, not built: their custom resource definitions.
require (
	github.com/external-secrets/external-secrets v1.3.2
	github.com/prometheus-operator/prometheus-operator v0.85.0
	sigs.k8s.io/gateway-api v1.6.3
)
