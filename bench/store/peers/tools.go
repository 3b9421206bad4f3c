//go:build tools

// Package peers pins the stores that kine-nats is measured against, and etcd's own load program.
package peers

import (
	_ "github.com/k3s-io/kine"
	_ "go.etcd.io/etcd/v3/tools/benchmark"
)
