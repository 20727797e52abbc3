{{- /* nkp.image: an image by its name. Arguments: the root context, the name. */ -}}
{{- define "nkp.image" -}}
{{- $root := index . 0 -}}
{{ $root.Values.image.registry }}/{{ index . 1 }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- end -}}

{{- /* nkp.pod: what the pods of all data planes have in common. */ -}}
{{- define "nkp.pod" -}}
serviceAccountName: nkp
priorityClassName: system-node-critical
hostNetwork: true
enableServiceLinks: false
tolerations: [{operator: Exists}]
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* nkp.podMetadata: labels, and a checksum by which a changed setting rolls the DaemonSet out. Arguments: the root context, the data plane. */ -}}
{{- define "nkp.podMetadata" -}}
{{- $values := (index . 0).Values -}}
labels: {app.kubernetes.io/name: nkp, nkp-proxy.github.io/data-plane: {{ index . 1 }}}
{{- $settings := printf "%s %s %v" $values.config $values.apiServer.host $values.windows.network }}
{{- if ne (trim $settings) "" }}
annotations: {checksum/settings: {{ printf "%s %v" $settings $values.apiServer.port | sha256sum }}}
{{- end }}
{{- end -}}

{{- /* nkp.probes: the container's port and probes, but for the start. */ -}}
{{- define "nkp.probes" -}}
ports:
- {name: health, containerPort: 10256, hostPort: 10256}
{{- if .Values.metrics.expose }}
- {name: metrics, containerPort: 10249, hostPort: 10249}
{{- end }}
# 503: a change has not been programmed within a minute. A restart is the last resort.
livenessProbe:
  httpGet: {path: /livez, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 12
readinessProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end -}}

{{- /* nkp.metricsArgs: the arguments that serve the metrics beyond the node, to permitted clients. */ -}}
{{- define "nkp.metricsArgs" -}}
{{- if .Values.metrics.expose -}}
- --metrics-bind-address=0.0.0.0:10249
- --metrics-authorization
{{- end -}}
{{- end -}}
