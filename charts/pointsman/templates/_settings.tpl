{{- /* The settings as our processes read them: values.config, and what the chart knows better. */ -}}
{{- define "pointsman.settings" -}}
{{- $settings := deepCopy .Values.config -}}
{{- if .Values.trial.kafka.enabled -}}
{{- if $settings.log }}{{ fail "config.log and trial.kafka.enabled are both there: keep one" }}{{ end -}}
{{- $_ := set $settings "log" (printf "kafka://%s-kafka:9092" (include "pointsman.fullname" .)) -}}
{{- end -}}
{{- if .Values.trial.valkey.enabled -}}
{{- if $settings.redis }}{{ fail "config.redis and trial.valkey.enabled are both there: keep one" }}{{ end -}}
{{- $_ := set $settings "redis" (printf "redis://%s-valkey:6379/0" (include "pointsman.fullname" .)) -}}
{{- end -}}
{{- if not (hasPrefix "kafka://" (default "" $settings.log)) }}{{ fail "config.log must be kafka://host:port,... (or, to try it, trial.kafka.enabled)" }}{{ end -}}
{{- if has (default "embedded" $settings.redis) (list "embedded") }}{{ fail "config.redis must be redis:// or rediss:// (or, to try it, trial.valkey.enabled)" }}{{ end -}}
{{- $hasClaim := or .Values.data.create .Values.data.existingClaim -}}
{{- if and (hasPrefix "file:" (default "file:" $settings.objects)) (not $hasClaim) -}}
{{- fail "config.objects must be s3://, gs:// or az://, which all pods see (or, to try it, data.create or data.existingClaim)" -}}
{{- end -}}
{{- $_ := set $settings "data" "/data" -}}
{{- if .Values.prices }}{{ $_ := set $settings "prices" "prices.yaml" }}{{ end -}}
{{- $times := include "pointsman.times" . | fromYaml -}}
{{- $_ := set $settings "pod_grace_s" $times.worker -}}
{{- $_ := set $settings "worker" (merge (dict "drain_s" $times.drain) (default dict $settings.worker)) -}}
{{- $_ := set $settings "http" (merge (dict "drain_s" $times.goodbye) (default dict $settings.http)) -}}
{{- include "pointsman.refuseSecrets" (dict "path" "config" "value" .Values.config) -}}
{{- include "pointsman.refuseUnknownVariables" (dict "root" . "settings" $settings) -}}
{{- toYaml $settings -}}
{{- end -}}

{{- /* Seconds: the chain from the inside out. A call, the drain of a worker that lets it end, the pod that lets it drain. */ -}}
{{- define "pointsman.times" -}}
{{- $longest := 0.0 -}}
{{- range $name, $deployment := .Values.config.deployments -}}
{{- $longest = max $longest (default 300.0 (default dict $deployment.timeouts).total_s | float64) -}}
{{- end -}}
{{- $worker := default dict .Values.config.worker -}}
{{- $drain := (hasKey $worker "drain_s" | ternary $worker.drain_s (maxf $longest 30.0)) | float64 | ceil | int64 -}}
{{- /* A stop takes up to ten seconds more than the drain, and to close a log that does not answer ten more. */ -}}
{{- $least := maxf (add $drain 20) (mulf $longest 1.2) | ceil | int64 -}}
{{- $grace := default $least .Values.config.pod_grace_s | float64 | ceil | int64 -}}
{{- if lt $grace $least -}}
{{- fail (printf "config.pod_grace_s is %d s, but a worker may drain for %d s and a call may take %.0f s: it must be at least %d s" $grace $drain $longest $least) -}}
{{- end -}}
{{- $http := default dict .Values.config.http -}}
{{- $accept := default 20.0 $http.accept_wait_s | float64 | ceil | int64 -}}
{{- $goodbye := (hasKey $http "drain_s" | ternary $http.drain_s $longest) | float64 | ceil | int64 -}}
{{- toYaml (dict "drain" $drain "worker" $grace "goodbye" $goodbye "http" (add .Values.http.preStopSeconds $goodbye 15) "inbox" (add $accept 20) "other" 30) -}}
{{- end -}}

{{- /* A ConfigMap can be read by many. Fails at what is a secret and no ${NAME}. */ -}}
{{- define "pointsman.refuseSecrets" -}}
{{- $path := .path -}}
{{- if kindIs "map" .value -}}
{{- range $key, $value := .value -}}
{{- $here := printf "%s.%s" $path $key -}}
{{- if and (has $key (list "api_key" "password" "secret" "webhook_secret")) (kindIs "string" $value) -}}
{{- if not (regexMatch "^(\\$\\{[A-Za-z_][A-Za-z0-9_]*\\},?)*$" $value) }}{{ fail (printf "%s is a secret, and the settings are a ConfigMap: write ${NAME}, and name its Secret in secretEnv" $here) }}{{ end -}}
{{- end -}}
{{- include "pointsman.refuseSecrets" (dict "path" $here "value" $value) -}}
{{- end -}}
{{- else if kindIs "slice" .value -}}
{{- range $index, $value := .value }}{{ include "pointsman.refuseSecrets" (dict "path" (printf "%s[%d]" $path $index) "value" $value) }}{{ end -}}
{{- else if kindIs "string" .value -}}
{{- if regexMatch "^[a-z]+://[^/@]*:[^/@$]+[^/@]*@" .value }}{{ fail (printf "%s has a password in it, and the settings are a ConfigMap: write ${NAME}, and name its Secret in secretEnv" $path) }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "pointsman.refuseUnknownVariables" -}}
{{- $known := concat (keys .root.Values.env) (keys .root.Values.secretEnv) -}}
{{- range regexFindAll "\\$\\{[A-Za-z_][A-Za-z0-9_]*\\}" (toJson .settings) -1 -}}
{{- $name := trimSuffix "}" (trimPrefix "${" .) -}}
{{- if not (has $name $known) }}{{ fail (printf "config names the variable %s, which secretEnv does not have" $name) }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "pointsman.configData" -}}
pointsman.yaml: |
  {{- include "pointsman.settings" . | nindent 2 }}
{{- with .Values.prices }}
prices.yaml: |
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The lanes that a backend's deployments need, as a JSON list: backend.modality.tier. */ -}}
{{- define "pointsman.lanes" -}}
{{- $backend := .backend -}}
{{- $lanes := list -}}
{{- range $name, $deployment := .root.Values.config.deployments -}}
{{- if eq $deployment.backend $backend -}}
{{- $modalities := default (list "text") $deployment.modalities -}}
{{- if kindIs "string" $modalities }}{{ $modalities = splitList "," (nospace $modalities) }}{{ end -}}
{{- range $modalities }}{{ $lanes = append $lanes (printf "%s.%s.%s" $backend . $deployment.tier) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $lanes | uniq | sortAlpha | toJson -}}
{{- end -}}
