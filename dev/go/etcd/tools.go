//go:build tools

// Package etcd pins the etcd that HOST_STORE=etcd runs, to tell a fault of kine-nats from one of Kubernetes, and etcd's
// tools, which tests use on kine-nats.
package etcd

import (
	_ "go.etcd.io/etcd/etcdctl/v3"
	_ "go.etcd.io/etcd/etcdutl/v3"
	_ "go.etcd.io/etcd/server/v3"
)
