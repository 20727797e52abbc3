{{- /* nkp.image: an image by its name. Arguments: the root context, the name. */ -}}
{{- define "nkp.image" -}}
{{- $root := index . 0 -}}
image: {{ $root.Values.image.registry }}/{{ index . 1 }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- with $root.Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end -}}

{{- /* nkp.daemonSetMetadata: a DaemonSet's name, labels and annotations. Arguments: the root context, the name. */ -}}
{{- define "nkp.daemonSetMetadata" -}}
{{- $root := index . 0 -}}
name: {{ index . 1 }}
namespace: {{ $root.Release.Namespace }}
labels: {{ merge (dict "app.kubernetes.io/name" "nkp") $root.Values.labels | toJson }}
{{- with $root.Values.annotations }}
annotations: {{ toJson . }}
{{- end }}
{{- end -}}

{{- /* nkp.updateStrategy: how a DaemonSet replaces its pods. */ -}}
{{- define "nkp.updateStrategy" -}}
{{- if .Values.updateStrategy -}}
{{ toYaml .Values.updateStrategy }}
{{- else -}}
type: RollingUpdate
rollingUpdate: {maxUnavailable: {{ .Values.maxUnavailable }}}
{{- end -}}
{{- end -}}

{{- /* nkp.pod: what the pods of all data planes have in common. */ -}}
{{- define "nkp.pod" -}}
serviceAccountName: nkp
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
hostNetwork: true
enableServiceLinks: false
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* nkp.affinity: the nodes of a data plane, and what the value affinity says. Terms of a node affinity are alternatives, so that the
data plane's expression goes into each. Arguments: the root context, the data plane. */ -}}
{{- define "nkp.affinity" -}}
{{- $affinity := deepCopy (index . 0).Values.affinity -}}
{{- $plane := index . 1 -}}
{{- if has $plane (list "ovs" "iptables") -}}
{{- $mine := dict "key" "nkp-proxy.github.io/data-plane" "operator" (eq $plane "ovs" | ternary "In" "NotIn") "values" (list "ovs") -}}
{{- $node := get $affinity "nodeAffinity" | default dict -}}
{{- $required := get $node "requiredDuringSchedulingIgnoredDuringExecution" | default dict -}}
{{- $terms := list -}}
{{- range get $required "nodeSelectorTerms" | default (list dict) -}}
{{- $terms = append $terms (merge (dict "matchExpressions" (append (.matchExpressions | default list) $mine)) .) -}}
{{- end -}}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $_ = set $affinity "nodeAffinity" $node -}}
{{- end -}}
{{- with $affinity -}}
affinity: {{ toJson . }}
{{- end -}}
{{- end -}}

{{- /* nkp.podMetadata: labels, annotations, and a checksum by which a changed setting rolls the DaemonSet out. Arguments: the root context,
the data plane. */ -}}
{{- define "nkp.podMetadata" -}}
{{- $values := (index . 0).Values -}}
labels: {{ merge (dict "app.kubernetes.io/name" "nkp" "nkp-proxy.github.io/data-plane" (index . 1)) $values.podLabels | toJson }}
{{- $annotations := deepCopy $values.podAnnotations -}}
{{- $settings := printf "%s %s %v" $values.config $values.apiServer.host $values.windows.network }}
{{- if ne (trim $settings) "" }}
{{- $_ := set $annotations "checksum/settings" (printf "%s %v" $settings $values.apiServer.port | sha256sum) }}
{{- end }}
{{- with $annotations }}
annotations: {{ toJson . }}
{{- end }}
{{- end -}}

{{- /* nkp.env: the container's environment. */ -}}
{{- define "nkp.env" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- with .Values.env }}
{{ toYaml . }}
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

{{- /* nkp.clusterArgs: the arguments of the cluster, for nodes of every system. */ -}}
{{- define "nkp.clusterArgs" -}}
{{- with .Values.clusterCIDR }}
- --cluster-cidr={{ . }}
{{- end }}
{{- if .Values.metrics.expose }}
- --metrics-bind-address=0.0.0.0:10249
- --metrics-authorization
{{- end -}}
{{- end -}}

{{- /* nkp.testContainer: what the containers of the test have in common. */ -}}
{{- define "nkp.testContainer" -}}
resources: {{ toJson .Values.test.resources }}
securityContext:
  runAsUser: 0 # the agent's socket is root's
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  seccompProfile: {type: RuntimeDefault}
  capabilities: {drop: [ALL]}
{{- end -}}
