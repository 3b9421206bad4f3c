//go:build tools

// Package metricsserver pins what answers `kubectl top` in tenants' clusters.
package metricsserver

import (
	_ "sigs.k8s.io/metrics-server/cmd/metrics-server"
)
