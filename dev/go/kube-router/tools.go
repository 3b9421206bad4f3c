//go:build tools

// Package kuberouter pins the NetworkPolicy firewall of the development host.
package kuberouter

import _ "github.com/cloudnativelabs/kube-router/cmd/kube-router"
