// Command controller is cert-manager's controller with the CA and SelfSigned issuers, which are all that Yoke asks for.
//
// Upstream's own main is a module that no Go proxy serves (it is tied to its repository by a replace), so this one calls
// the same public packages. There is no leader election: the development host runs one replica.
package main

import (
	"context"
	"flag"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cert-manager/cert-manager/pkg/controller"
	"k8s.io/klog/v2"

	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/metrics"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

const (
	// A development host makes dozens of certificates at once and waits for them.
	apiQPS   = 200
	apiBurst = 400
	workers  = 5

	retryMin = time.Second
	retryMax = time.Minute
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of the API server; empty means the pod's own ServiceAccount")
	namespace := flag.String("cluster-resource-namespace", "cert-manager", "namespace of the Secrets of ClusterIssuers")
	health := flag.String("health-listen", ":9403", "address that answers /livez and /readyz")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, *kubeconfig, *namespace, *health); err != nil {
		klog.ErrorS(err, "controller ended")
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig, namespace, health string) error {
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:         kubeconfig,
		KubernetesAPIQPS:   apiQPS,
		KubernetesAPIBurst: apiBurst,
		IssuerOptions:      controller.IssuerOptions{ClusterResourceNamespace: namespace},
		CertificateOptions: controller.CertificateOptions{
			CertificateRequestMinimumBackoffDuration: retryMin,
			CertificateRequestMaximumBackoffDuration: retryMax,
		},
	})
	if err != nil {
		return err
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}

	var ready atomic.Bool
	go serveHealth(health, &ready)

	ended := make(chan error, len(controller.Known()))
	for name, construct := range controller.Known() {
		c, err := construct(factory)
		if err != nil {
			return err
		}
		klog.InfoS("starting", "controller", name)
		go func() { ended <- c.Run(workers, ctx) }()
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	shared.HTTP01ResourceMetadataInformersFactory.Start(ctx.Done())
	shared.SharedInformerFactory.WaitForCacheSync(ctx.Done())
	ready.Store(true)

	// A controller that ends while the others go on would leave certificates waiting without a word.
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
}

func serveHealth(address string, ready *atomic.Bool) {
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready.Load() {
			http.Error(w, "caches are not synced", http.StatusServiceUnavailable)
		}
	})
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	klog.ErrorS(server.ListenAndServe(), "health endpoint ended")
	os.Exit(1)
}
