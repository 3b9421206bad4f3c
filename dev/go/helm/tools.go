//go:build tools

// Package helm pins the helm command that installs Yoke's chart.
package helm

import _ "helm.sh/helm/v4/cmd/helm"
