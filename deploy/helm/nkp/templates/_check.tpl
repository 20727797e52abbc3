{{- /* nkp.check: refuses values that cannot work, with a sentence that begins with the value's name. What a line of
values.schema.json says well enough (names, enumerations, numbers) is not repeated here. Argument: the root context. */ -}}
{{- define "nkp.check" -}}
{{- include "nkp.checkKinds" . -}}
{{- include "nkp.checkArguments" . -}}
{{- include "nkp.checkQuantities" . -}}
{{- $v := .Values -}}

{{- range $v.dataPlanes -}}
{{- if not (has . (list "auto" "ovs" "ovs-pods-only" "iptables")) -}}
{{- fail (printf "dataPlanes: %s is not one of auto, ovs, ovs-pods-only and iptables" (toJson .)) -}}
{{- end -}}
{{- end -}}
{{- if ne (len $v.dataPlanes) (len (uniq $v.dataPlanes)) -}}
{{- fail "dataPlanes: each makes a DaemonSet; write none twice" -}}
{{- end -}}
{{- if and (has "auto" $v.dataPlanes) (gt (len $v.dataPlanes) 1) -}}
{{- fail "dataPlanes: auto serves all Linux nodes; leave it out, or the others" -}}
{{- end -}}
{{- if and (has "ovs" $v.dataPlanes) (has "ovs-pods-only" $v.dataPlanes) -}}
{{- fail "dataPlanes: ovs and ovs-pods-only serve the same nodes; leave one out" -}}
{{- end -}}
{{- if and (not $v.dataPlanes) (not $v.windows.enabled) -}}
{{- fail "dataPlanes: without any, and with windows.enabled false, no node would be served" -}}
{{- end -}}

{{- if and $v.kubeadm $v.config -}}
{{- fail "kubeadm: nkp reads one configuration; leave out kubeadm or config" -}}
{{- end -}}
{{- if and $v.kubeadm (ne .Release.Namespace "kube-system") -}}
{{- fail "kubeadm: kubeadm's ConfigMap kube-proxy is in the namespace kube-system; install nkp there" -}}
{{- end -}}
{{- if and $v.clusterCIDR (or $v.kubeadm $v.config) -}}
{{- fail (printf "clusterCIDR: with %s nkp reads it from the KubeProxyConfiguration; set clusterCIDR there, and leave it out here" ($v.kubeadm | ternary "kubeadm" "config")) -}}
{{- end -}}
{{- range splitList "," $v.clusterCIDR -}}
{{- if and $v.clusterCIDR (not (regexMatch "^[0-9a-fA-F.:]+/[0-9]{1,3}$" .)) -}}
{{- fail (printf "clusterCIDR: %s is not an address range such as 10.244.0.0/16; a second one, of the other family, follows after a comma" (toJson .)) -}}
{{- end -}}
{{- end -}}
{{- $bridges := or (has "auto" $v.dataPlanes) (has "ovs" $v.dataPlanes) (has "ovs-pods-only" $v.dataPlanes) -}}
{{- if and (or $v.ovs.bridge $v.ovs.uplinkPort) (not $bridges) -}}
{{- fail "ovs: no Open vSwitch node is served; add ovs, ovs-pods-only or auto to dataPlanes" -}}
{{- end -}}
{{- if and $v.windows.enabled (or $v.kubeadm $v.config) (kindIs "invalid" $v.windows.extraArgs) -}}
{{- fail (printf "windows: nodes with Windows do not read %s; set windows.extraArgs to the arguments that they need instead (--cluster-cidr=10.244.0.0/16), or to [] if they need none" ($v.kubeadm | ternary "kubeadm's ConfigMap" "config")) -}}
{{- end -}}
{{- if and (not $v.apiServer.host) (not $v.apiServer.external) (or $v.windows.enabled (not $v.kubeadm)) -}}
{{- fail "apiServer.host: is missing; nkp cannot reach the API server through the Service that it serves itself. Set it to the address that kubectl cluster-info prints (--set apiServer.host=192.0.2.10), or kubeadm: true on Linux nodes of kubeadm, or apiServer.external: true if the ConfigMap nkp-apiserver is there already" -}}
{{- end -}}
{{- if and $v.apiServer.host $v.apiServer.external -}}
{{- fail "apiServer.external: says that nkp finds the API server without apiServer.host; leave one out" -}}
{{- end -}}
{{- if and $v.prometheus.podMonitor.enabled (not $v.metrics.expose) -}}
{{- fail "prometheus.podMonitor: Prometheus cannot reach the metrics at 127.0.0.1 of the nodes; set metrics.expose" -}}
{{- end -}}
{{- end -}}

{{- /* nkp.checkKinds: null, and a string or a map for a list. */ -}}
{{- define "nkp.checkKinds" -}}
{{- $v := .Values -}}
{{- range $name := list "apiServer" "image" "metrics" "ovs" "prometheus" "test" "windows" -}}
{{- if not (kindIs "map" (index $v $name)) -}}
{{- fail (printf "%s: must be a map, as in the chart's values.yaml; it is %s" $name (toJson (index $v $name))) -}}
{{- end -}}
{{- end -}}
{{- $lists := dict "dataPlanes" $v.dataPlanes "extraArgs" $v.extraArgs "env" $v.env "tolerations" $v.tolerations "image.pullSecrets" $v.image.pullSecrets -}}
{{- $maps := dict "resources" $v.resources "sysctlsResources" $v.sysctlsResources "windows.resources" $v.windows.resources "test.resources" $v.test.resources "affinity" $v.affinity "nodeSelector" $v.nodeSelector "updateStrategy" $v.updateStrategy "labels" $v.labels "annotations" $v.annotations "podLabels" $v.podLabels "podAnnotations" $v.podAnnotations -}}
{{- range $kind, $values := dict "list" $lists "map" $maps -}}
{{- $list := eq $kind "list" -}}
{{- range $name, $value := $values -}}
{{- if kindIs "invalid" $value -}}
{{- fail (printf "%s: null takes the default away; leave it out for the default, or write %s for none" $name ($list | ternary "[]" "{}")) -}}
{{- else if and $list (not (kindIs "slice" $value)) -}}
{{- fail (printf "%s: must be a list, as [a, b] in a file or --set '%s={a,b}'; it is %s" $name $name (toJson $value)) -}}
{{- else if and (not $list) (not (kindIs "map" $value)) -}}
{{- fail (printf "%s: must be a map, as {key: value}; it is %s" $name (toJson $value)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not (or (kindIs "invalid" $v.windows.extraArgs) (kindIs "slice" $v.windows.extraArgs)) -}}
{{- fail (printf "windows.extraArgs: must be a list, as [a, b] in a file or --set 'windows.extraArgs={a,b}'; it is %s" (toJson $v.windows.extraArgs)) -}}
{{- end -}}
{{- range $v.env -}}
{{- if not (and (kindIs "map" .) .name) -}}
{{- fail (printf "env: must be a list of variables, as {name: GOGC, value: \"50\"}; %s has no name" (toJson .)) -}}
{{- end -}}
{{- if has .name (list "NODE_NAME" "KUBERNETES_SERVICE_HOST" "KUBERNETES_SERVICE_PORT") -}}
{{- fail (printf "env: the chart sets %s itself" .name) -}}
{{- end -}}
{{- end -}}
{{- range $name, $map := dict "labels" $v.labels "annotations" $v.annotations "podLabels" $v.podLabels "podAnnotations" $v.podAnnotations "nodeSelector" $v.nodeSelector -}}
{{- range $key, $value := $map -}}
{{- if not (kindIs "string" $value) -}}
{{- fail (printf "%s: the value of %s must be a string; quote %s in a file, or use --set-string" $name $key (toJson $value)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* nkp.checkArguments: extraArgs are arguments, and none that the chart writes by a value. */ -}}
{{- define "nkp.checkArguments" -}}
{{- $mine := dict "mode" "dataPlanes" "config" "config or kubeadm" "hostname-override" "the node's name" -}}
{{- range $name, $list := dict "extraArgs" .Values.extraArgs "windows.extraArgs" .Values.windows.extraArgs -}}
{{- range $list -}}
{{- if not (and (kindIs "string" .) (regexMatch "^--[a-z][a-z0-9-]*(=.*)?$|^-v=?[0-9]+$" .)) -}}
{{- fail (printf "%s: %s is not an argument of nkp run; write each as one string, --NAME=VALUE, for example --log-level=debug" $name (toJson .)) -}}
{{- end -}}
{{- $flag := regexFind "[a-z][a-z0-9-]*" . -}}
{{- if hasKey $mine $flag -}}
{{- fail (printf "%s: the chart writes --%s itself, from %s" $name $flag (get $mine $flag)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* nkp.checkQuantities: the API server would take the objects before the DaemonSet that has a quantity it refuses. */ -}}
{{- define "nkp.checkQuantities" -}}
{{- $v := .Values -}}
{{- range $name, $resources := dict "resources" $v.resources "sysctlsResources" $v.sysctlsResources "windows.resources" $v.windows.resources "test.resources" $v.test.resources -}}
{{- range $kind, $quantities := $resources -}}
{{- if not (has $kind (list "requests" "limits" "claims")) -}}
{{- fail (printf "%s: %s is not one of requests and limits, as {requests: {cpu: 100m, memory: 224Mi}}" $name $kind) -}}
{{- end -}}
{{- if and (ne $kind "claims") (not (kindIs "map" $quantities)) -}}
{{- fail (printf "%s.%s: must be a map, as {cpu: 100m, memory: 224Mi}; it is %s" $name $kind (toJson $quantities)) -}}
{{- end -}}
{{- if ne $kind "claims" -}}
{{- range $of, $quantity := $quantities -}}
{{- if not (regexMatch "^[0-9]+([.][0-9]*)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]+)?$|^[.][0-9]+$" (toString $quantity)) -}}
{{- fail (printf "%s.%s.%s: %s is not a quantity such as 250m, 0.5 or 224Mi" $name $kind $of (toJson $quantity)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
