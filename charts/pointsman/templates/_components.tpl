{{- /* Every process that keeps running, as a YAML list: name, role, backend, args, env, grace, values. */ -}}
{{- define "pointsman.components" -}}
{{- $root := . -}}
{{- $values := .Values -}}
{{- $times := include "pointsman.times" . | fromYaml -}}
{{- $components := list (dict "name" "http" "role" "http" "args" (list "serve" "http") "grace" $times.http "values" $values.http) -}}
{{- $components = append $components (dict "name" "sweeper" "role" "sweeper" "args" (list "serve" "sweeper") "grace" $times.other "values" $values.sweeper) -}}
{{- if $values.inbox.enabled -}}
{{- $components = append $components (dict "name" "inbox" "role" "inbox" "args" (list "serve" "inbox") "grace" $times.inbox "values" $values.inbox) -}}
{{- end -}}
{{- $backends := list -}}
{{- $collected := list -}}
{{- range $name, $deployment := $values.config.deployments -}}
{{- $backends = append $backends $deployment.backend | uniq -}}
{{- $bedrock := default dict $deployment.bedrock -}}
{{- if or $deployment.sagemaker $bedrock.shipping $bedrock.videos }}{{ $collected = append $collected $deployment.backend | uniq }}{{ end -}}
{{- end -}}
{{- if not $backends }}{{ fail "config.deployments is empty: there is nothing to run; name at least one model" }}{{ end -}}
{{- $served := list -}}
{{- range $values.workers -}}
{{- if not (has .backend $backends) }}{{ fail (printf "workers has backend %s, but none of config.deployments is on it: such a worker has nothing to do" .backend) }}{{ end -}}
{{- $served = append $served .backend -}}
{{- $own := mergeOverwrite (deepCopy $values.workerDefaults) (deepCopy .) -}}
{{- $components = append $components (dict "name" (printf "worker-%s" (default .backend .name)) "role" "worker" "backend" .backend "args" (list "serve" "worker" "--backend" .backend) "grace" $times.worker "values" $own) -}}
{{- end -}}
{{- range $backends -}}
{{- if not (has . $served) }}{{ fail (printf "config.deployments names backend %s, but workers has no entry for it: its jobs would wait for ever" .) }}{{ end -}}
{{- end -}}
{{- range $collected | sortAlpha -}}
{{- $own := mergeOverwrite (omit $values.collectors "backends" | deepCopy) (deepCopy (default dict (get $values.collectors.backends .))) -}}
{{- $components = append $components (dict "name" (printf "collector-%s" .) "role" "collector" "backend" . "args" (list "serve" "collector" "--backend" .) "grace" $times.other "values" $own) -}}
{{- end -}}
{{- $names := list -}}
{{- range $components -}}
{{- if has .name $names }}{{ fail (printf "two entries of workers are called %s: give them names of their own" .name) }}{{ end -}}
{{- $names = append $names .name -}}
{{- $own := .values -}}
{{- $section := ternary "WORKER" (upper .role) (eq .role "collector") -}}
{{- $prefix := ternary "POINTSMAN_HTTP__" (printf "POINTSMAN_%s__HEALTH_" $section) (eq .role "http") -}}
{{- $env := dict (printf "%sHOST" $prefix) $values.bindAddress (printf "%sPORT" $prefix) ($own.port | int64 | toString) -}}
{{- /* KEDA reads the user's name from here; the password it finds as well. */ -}}
{{- with (default dict $values.config.kafka).username }}{{ if eq $section "WORKER" }}{{ $_ := set $env "POINTSMAN_KAFKA__USERNAME" . }}{{ end }}{{ end -}}
{{- $_ := set . "env" $env -}}
{{- $grace := default .grace $own.terminationGracePeriodSeconds | int64 -}}
{{- if lt $grace (int64 .grace) }}{{ fail (printf "terminationGracePeriodSeconds of %s is %d s, but it needs %d s to end what it does" .name $grace (int64 .grace)) }}{{ end -}}
{{- $_ := set . "grace" $grace -}}
{{- end -}}
{{- toYaml $components -}}
{{- end -}}

{{- /* The Kubernetes deployments that a backend's workers wake, as a YAML list: namespace, deployment. */ -}}
{{- define "pointsman.wakes" -}}
{{- $backend := .backend -}}
{{- $wakes := list -}}
{{- range $name, $deployment := .root.Values.config.deployments -}}
{{- $wake := default dict (default dict $deployment.replicas).wake -}}
{{- if and (eq $deployment.backend $backend) $wake.deployment -}}
{{- $wakes = append $wakes (dict "namespace" $wake.namespace "deployment" $wake.deployment) | uniq -}}
{{- end -}}
{{- end -}}
{{- toYaml $wakes -}}
{{- end -}}
