{{- define "pointsman.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.runAsUser }}
runAsGroup: {{ .Values.runAsUser }}
fsGroup: {{ .Values.runAsUser }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "pointsman.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- /* The variables of a container: takes the root, and `own` and `env`, which win in this order. */ -}}
{{- define "pointsman.env" -}}
{{- $own := default dict .own -}}
{{- $plain := mergeOverwrite (dict "POINTSMAN_CONFIG" "/etc/pointsman/pointsman.yaml") (deepCopy (default dict .env)) (deepCopy .root.Values.env) (deepCopy (default dict $own.env)) -}}
{{- $secret := mergeOverwrite (deepCopy .root.Values.secretEnv) (deepCopy (default dict $own.secretEnv)) -}}
{{- range $name, $value := $plain -}}
{{- if regexMatch "(PASSWORD|SECRET|TOKEN|API_KEY|ACCESS_KEY|CREDENTIAL)" (upper $name) }}{{ fail (printf "env has %s, which looks like a secret: put it into a Secret and name that in secretEnv" $name) }}{{ end }}
{{- if hasKey $secret $name }}{{ fail (printf "%s is in env and in secretEnv: keep one" $name) }}{{ end }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- range $name, $from := $secret }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $from.secret }}, key: {{ $from.key }}}}
{{- end }}
{{- end -}}

{{- define "pointsman.volumeMounts" -}}
- {name: config, mountPath: /etc/pointsman, readOnly: true}
- {name: tmp, mountPath: /tmp}
- {name: data, mountPath: /data}
{{- range $name, $mount := .Values.mounts }}
- {name: {{ $name }}, mountPath: {{ $mount.path }}, readOnly: true}
{{- end }}
{{- end -}}

{{- /* Takes the root, the name of the ConfigMap, and whether the pod comes before the claim and has no use for it. */ -}}
{{- define "pointsman.volumes" -}}
- name: config
  configMap: {name: {{ .config }}}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
- name: data
{{- if and (or .root.Values.data.create .root.Values.data.existingClaim) (not .isWithoutClaim) }}
  persistentVolumeClaim: {claimName: {{ default (printf "%s-data" (include "pointsman.fullname" .root)) .root.Values.data.existingClaim }}}
{{- else }}
  emptyDir: {sizeLimit: 1Gi}
{{- end }}
{{- range $name, $mount := .root.Values.mounts }}
- name: {{ $name }}
  {{- if $mount.secret }}
  secret: {secretName: {{ $mount.secret }}}
  {{- else }}
  configMap: {name: {{ required (printf "mounts.%s needs a secret or a configMap" $name) $mount.configMap }}}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* Where a pod may run: takes the root and a component's own values. */ -}}
{{- define "pointsman.placement" -}}
{{- $values := .root.Values -}}
{{- $own := default dict .own -}}
{{- with default $values.nodeSelector $own.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with default $values.tolerations $own.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with default $values.affinity $own.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with default $values.priorityClassName $own.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
