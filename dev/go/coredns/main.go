// Command coredns is CoreDNS with only the plugins that a cluster's DNS needs. Upstream's main links some fifty more,
// which triple the time it takes to build.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

// The order in which a query passes the plugins, which is not the Corefile's.
var directives = []string{
	"reload", "health", "ready", "prometheus", "errors", "log", "loadbalance", "cache", "loop", "kubernetes", "forward",
}

func main() {
	dnsserver.Directives = directives
	coremain.Run()
}
