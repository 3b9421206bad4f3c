// Package conformance contains the end-to-end tests of Kubernetes that need only an API and its controllers: those of
// sig-api-machinery and sig-auth. run.sh builds and runs them.
package conformance

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/logs"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"

	_ "k8s.io/kubernetes/test/e2e/apimachinery"
	_ "k8s.io/kubernetes/test/e2e/auth"
	_ "k8s.io/kubernetes/test/utils/format"
)

func TestMain(m *testing.M) {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	framework.AfterReadingAllFlags(&framework.TestContext)
	os.Exit(m.Run())
}

func TestKubernetes(t *testing.T) {
	logs.InitLogs()
	defer logs.FlushLogs()
	framework.TestContext.KubeConfig = keepServerName(t, framework.TestContext.KubeConfig)
	gomega.RegisterFailHandler(framework.Fail)
	suite, reporter := framework.CreateGinkgoConfig()
	ginkgo.RunSpecs(t, "Kubernetes", suite, reporter)
}

// keepServerName writes a kubeconfig in which cluster and context have different names, and returns its path. If the names are
// equal, the framework overrides the server's address in all clients. That override loses `tls-server-name`, without which a
// cluster behind an ingress is unreachable.
func keepServerName(t *testing.T, path string) string {
	kubeconfig, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	context := kubeconfig.Contexts[kubeconfig.CurrentContext]
	if context == nil {
		t.Fatalf("%s has no current context", path)
	}
	cluster := kubeconfig.Clusters[context.Cluster]
	context.Cluster = "not-" + kubeconfig.CurrentContext
	kubeconfig.Clusters[context.Cluster] = cluster
	delete(kubeconfig.Clusters, kubeconfig.CurrentContext)
	path = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, path); err != nil {
		t.Fatal(err)
	}
	return path
}
