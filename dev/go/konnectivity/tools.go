//go:build tools

// Package konnectivity pins the server and the agent by which control planes reach workers behind NAT.
package konnectivity

import (
	_ "sigs.k8s.io/apiserver-network-proxy/cmd/agent"
	_ "sigs.k8s.io/apiserver-network-proxy/cmd/server"
)
