{{- /* Labels by which horovodrun finds the parts of a job. Arguments: root, component. */ -}}
{{- define "horovod.labels" -}}
app.kubernetes.io/name: horovod
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/managed-by: horovodrun
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "horovod.most" -}}
{{- if gt (int .Values.maxNp) 0 }}{{ .Values.maxNp }}{{ else }}{{ .Values.np }}{{ end }}
{{- end }}

{{- define "horovod.check" -}}
{{- $_ := required "image is missing: all pods run it" .Values.image }}
{{- if ne (mod (int .Values.np) (int .Values.slotsPerPod)) 0 }}{{ fail (printf "np is %v; expected a multiple of slotsPerPod %v" .Values.np .Values.slotsPerPod) }}{{ end }}
{{- if ne (mod (int (include "horovod.most" .)) (int .Values.slotsPerPod)) 0 }}{{ fail (printf "maxNp is %v; expected a multiple of slotsPerPod %v" .Values.maxNp .Values.slotsPerPod) }}{{ end }}
{{- if and (gt (int .Values.maxNp) 0) (eq (int .Values.minNp) 0) }}{{ fail "maxNp is for elastic jobs, which minNp makes" }}{{ end }}
{{- range .Values.env }}
{{- if or (hasPrefix "HOROVOD_POD_" .name) (eq .name "JOB_COMPLETION_INDEX") }}{{ fail (printf "env has %s, by which the pods of a job know each other; expected other variables" .name) }}{{ end }}
{{- end }}
{{- if gt (len .Release.Name) 50 }}{{ fail (printf "the release is called %s; expected at most 50 characters" .Release.Name) }}{{ end }}
{{- end }}

{{- /* Common part of both kinds of pods. */ -}}
{{- define "horovod.spec" -}}
restartPolicy: Never
terminationGracePeriodSeconds: {{ .root.Values.grace }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .root.Values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- with .root.Values.podSecurityContext }}
securityContext: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "horovod.container" -}}
name: horovod
image: {{ .root.Values.image | quote }}
{{- with .root.Values.imagePullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- with .root.Values.workingDir }}
workingDir: {{ . | quote }}
{{- end }}
{{- with .root.Values.securityContext }}
securityContext: {{ toJson . }}
{{- end }}
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{- define "horovod.token" -}}
- name: HOROVOD_POD_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .Release.Name }}, key: token}}
{{- end }}
