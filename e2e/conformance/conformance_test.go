// Package conformance has those of Kubernetes' own end-to-end tests that need nothing but an API and its controllers:
// sig-api-machinery's and sig-auth's. run.sh builds and runs them.
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

// keepServerName answers a kubeconfig in which the cluster has another name than the context. Where they have one, the framework
// says the server's address once more to all clients, and who does so loses `tls-server-name`: a cluster behind an ingress is
// not reached without it.
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
