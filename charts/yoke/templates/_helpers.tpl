{{/* Labels of all objects: {{ include "yoke.labels" (list . "yoke-operator") }} */}}
{{- define "yoke.labels" -}}
{{- $root := index . 0 -}}
{{ include "yoke.selector" . }}
app.kubernetes.io/part-of: yoke
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels that select a component's pods; they never change. */}}
{{- define "yoke.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- end }}

{{/* Namespace of all certificate authorities. Fixed, because the operator's code contains it. */}}
{{- define "yoke.pkiNamespace" -}}
yoke-pki
{{- end }}

{{/* DNS name of ingress-xds, which is in its certificate and which Envoy verifies. */}}
{{- define "yoke.xdsName" -}}
yoke-ingress-xds.{{ .Release.Namespace }}.svc
{{- end }}

{{/* Name in Envoy's client certificate, which ingress-xds requires. */}}
{{- define "yoke.envoyName" -}}
envoy.{{ .Release.Namespace }}.svc
{{- end }}

{{/* Scheduling and user of a component's Pod: (list . "operator"), with the component's key in values.yaml. */}}
{{- define "yoke.pod" -}}
{{- $root := index . 0 -}}
{{- $component := index $root.Values (index . 1) -}}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ $root.Values.runAsUser }}
  runAsGroup: {{ $root.Values.runAsUser }}
  fsGroup: {{ $root.Values.runAsUser }}
  seccompProfile:
    type: RuntimeDefault
enableServiceLinks: false
{{- with $root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $component.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $component.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Spreads replicas over nodes if possible. Pods of an older template do not count, because they are being replaced. */}}
{{- define "yoke.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels:
        {{- include "yoke.selector" . | nindent 8 }}
{{- end }}

{{- define "yoke.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* Egress rules of a NetworkPolicy to the host's API servers. */}}
{{- define "yoke.hostApiEgress" -}}
- ports:
    - {port: {{ .Values.hostAPI.port }}, protocol: TCP}
    {{- if ne (int .Values.hostAPI.port) 443 }}
    - {port: 443, protocol: TCP}
    {{- end }}
  {{- with .Values.hostAPI.cidrs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  {{- end }}
{{- end }}

{{/* Egress rules to clusters through the ingress. Policies may see the Service's address or, after translation, a Pod's. */}}
{{- define "yoke.ingressEgress" -}}
- ports:
    - {port: 8443, protocol: TCP}
  to:
    - podSelector:
        matchLabels:
          {{- include "yoke.selector" (list . "envoy") | nindent 10 }}
- ports:
    - {port: {{ .Values.ingress.port }}, protocol: TCP}
  {{- if regexMatch "^[0-9.]+$" .Values.ingress.address }}
  to:
    - ipBlock: {cidr: {{ .Values.ingress.address }}/32}
  {{- else if contains ":" .Values.ingress.address }}
  to:
    - ipBlock: {cidr: "{{ .Values.ingress.address }}/128"}
  {{- end }}
{{- end }}

{{- define "yoke.dnsEgress" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
  {{- with .Values.networkPolicy.dns }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* Egress rules to the Pods of all control planes: namespaces with an identity label contain no other Pods. */}}
{{- define "yoke.controlPlaneEgress" -}}
- ports:
    {{- range . }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  to:
    - namespaceSelector:
        matchExpressions:
          - {key: yoke.drzzl.io/id, operator: Exists}
{{- end }}

{{- define "yoke.metricsIngress" -}}
- ports:
    - {port: {{ index . 1 }}, protocol: TCP}
  {{- with (index . 0).Values.networkPolicy.metricsFrom }}
  from:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* Full names of a Pod's own API, one for each cluster domain, as JSON. */}}
{{- define "yoke.clusterNames" -}}
{{- $names := list -}}
{{- range .Values.clusterDomains -}}
{{- $names = append $names (printf "kubernetes.default.svc.%s" .) -}}
{{- end -}}
{{- $names | uniq | toJson -}}
{{- end }}

{{/* First address of each Service range, at which Pods reach the API of their own cluster, as JSON. */}}
{{- define "yoke.apiAddresses" -}}
{{- $addresses := list -}}
{{- range .Values.serviceCIDRs -}}
{{- $base := regexReplaceAll "/.*$" . "" -}}
{{- if contains ":" $base -}}
{{- if not (hasSuffix "::" $base) -}}
{{- fail (printf "serviceCIDRs: write %s as a range whose address ends in ::, such as fd00:10:96::/112" .) -}}
{{- end -}}
{{- $addresses = append $addresses (printf "%s1" $base) -}}
{{- else -}}
{{- $parts := splitList "." $base -}}
{{- $addresses = append $addresses (printf "%s.%d" (initial $parts | join ".") (last $parts | int | add1)) -}}
{{- end -}}
{{- end -}}
{{- $addresses | uniq | toJson -}}
{{- end }}

{{/* Name constraints of the ingress's CA, as JSON. */}}
{{- define "yoke.publicConstraints" -}}
{{- $names := concat (list .Values.baseDomain "kubernetes" "kubernetes.default" "kubernetes.default.svc") (include "yoke.clusterNames" . | fromJsonArray) -}}
{{- $ranges := list -}}
{{- range include "yoke.apiAddresses" . | fromJsonArray -}}
{{- $ranges = append $ranges (printf "%s/%d" . (ternary 128 32 (contains ":" .))) -}}
{{- end -}}
{{- dict "critical" true "permitted" (dict "dnsDomains" $names "ipRanges" $ranges) | toJson -}}
{{- end }}

{{/* Name of that CA. It depends on the constraints, because cert-manager does not reissue a CA when they change. */}}
{{- define "yoke.publicName" -}}
yoke-public-{{ include "yoke.publicConstraints" . | sha256sum | trunc 8 }}
{{- end }}

{{/* A memory quantity such as 512Mi in bytes. */}}
{{- define "yoke.bytes" -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- $suffix := regexReplaceAll "^[0-9]+" . "" -}}
{{- $factors := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 -}}
{{- if or (not $number) (not (hasKey $factors $suffix)) -}}
{{- fail (printf "resources.envoy.limits.memory: %q is not a whole number of bytes, k, M, G, Ki, Mi or Gi" .) -}}
{{- end -}}
{{- mul $number (index $factors $suffix) -}}
{{- end }}

{{/* Checks that values.schema.json cannot express. */}}
{{- define "yoke.validate" -}}
{{- if not (.Capabilities.APIVersions.Has "cert-manager.io/v1") -}}
{{- fail "cert-manager is not installed in this cluster: its API cert-manager.io/v1 is missing. Yoke uses it for its certificate authorities. Install it first (https://cert-manager.io/docs/installation/helm/), then run this command again. (For `helm template`, add --api-versions cert-manager.io/v1.)" -}}
{{- end -}}
{{- if not .Values.baseDomain -}}
{{- fail "baseDomain is empty: set the domain of the clusters' public names, such as clusters.example.com" -}}
{{- end -}}
{{- if not .Values.ingress.address -}}
{{- fail "ingress.address is empty: set the address at which clients reach Envoy's Service; it is written into kubeconfigs" -}}
{{- end -}}
{{- if or (not .Values.nats.urls) (not .Values.nats.cidrs) -}}
{{- fail "nats.urls or nats.cidrs is empty: set both to the JetStream servers that hold the clusters' state, such as [tls://192.0.2.20:4222] and [192.0.2.20/32]" -}}
{{- end -}}
{{- $images := list "operator" "ingressXds" "kineNats" -}}
{{- if .Values.ssh.enabled -}}{{- $images = append $images "sshUi" -}}{{- end -}}
{{- range $images -}}
{{- if not (index $.Values.images .) -}}
{{- fail (printf "images.%s is empty: build Yoke's images with `make images`, push them to a registry that the cluster can pull from, and set the reference" .) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ssh.enabled .Values.ssh.api.enabled (not .Values.ssh.api.host) -}}
{{- fail "ssh.api.host is empty: set the hostname of the HTTPS API, such as api.example.com; its certificate and tokens are issued for it" -}}
{{- end -}}
{{- if and (gt (len .Values.classes) 1) (not .Values.defaultClass) -}}
{{- fail "defaultClass is empty: set the name of the class for Clusters without spec.class" -}}
{{- end -}}
{{- $defaults := 0 -}}
{{- range .Values.versions -}}{{- if .default -}}{{- $defaults = add1 $defaults -}}{{- end -}}{{- end -}}
{{- if gt (int $defaults) 1 -}}
{{- fail "more than one entry of `versions` has default: true; set it in exactly one" -}}
{{- end -}}
{{- if and (eq (int $defaults) 0) (gt (len .Values.versions) 1) -}}
{{- fail "no entry of `versions` has default: true; set it in exactly one" -}}
{{- end -}}
{{- if lt (int .Values.nats.replicas) 3 -}}
{{- range .Values.classes -}}
{{- if gt (int (default 1 .storeReplicas)) (int $.Values.nats.replicas) -}}
{{- fail (printf "class %s has storeReplicas %d, but nats.replicas is only %d; lower storeReplicas, or set nats.replicas to the number of JetStream servers" .name (int .storeReplicas) (int $.Values.nats.replicas)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
