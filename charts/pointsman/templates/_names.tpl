{{- define "pointsman.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* What tells this release's things from others'; takes the root and a component. */ -}}
{{- define "pointsman.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "pointsman.labels" -}}
{{ include "pointsman.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- /* Takes the root, a component's backend, and an image of its own, which may say a part of it only. */ -}}
{{- define "pointsman.image" -}}
{{- $image := deepCopy .root.Values.image -}}
{{- if has .backend (list "bedrock" "sagemaker") -}}
{{- $_ := set $image "repository" (printf "%s-aws" $image.repository) -}}
{{- $_ := set $image "digest" "" -}}
{{- range $name, $value := .root.Values.awsImage }}{{ if $value }}{{ $_ := set $image $name $value }}{{ end }}{{ end -}}
{{- end -}}
{{- $image = mergeOverwrite $image (deepCopy (default dict .image)) -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .root.Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{- define "pointsman.serviceAccount" -}}
{{- if .root.Values.serviceAccount.create -}}
{{ include "pointsman.fullname" .root }}-{{ .component }}
{{- else -}}
{{ required "serviceAccount.create is false, so serviceAccount.name must name one that exists" .root.Values.serviceAccount.name }}
{{- end -}}
{{- end -}}
