// Package testserver replaces the package of the same name in k8s.io/apiserver/pkg/storage/etcd3, so that Kubernetes' own
// storage tests run against kine-nats: each test gets a process and a stream of its own.
//
// KINE_NATS names the binary, KINE_NATS_URL the NATS server.
package testserver

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	"google.golang.org/grpc"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
)

const startLimit = 20 * time.Second

// NewTestConfig reserves an address; tests change the interval of progress notifications in the returned configuration.
func NewTestConfig(t testing.TB) *embed.Config {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := url.URL{Scheme: "http", Host: listener.Addr().String()}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	config := embed.NewConfig()
	config.ListenClientUrls = []url.URL{address}
	config.AdvertiseClientUrls = []url.URL{address}
	config.Dir = t.TempDir()
	config.WatchProgressNotifyInterval = 5 * time.Second
	return config
}

// RunEtcd starts kine-nats and returns a client for it.
func RunEtcd(t testing.TB, config *embed.Config) *kubernetes.Client {
	t.Helper()
	if config == nil {
		config = NewTestConfig(t)
	}
	address := config.ListenClientUrls[0].Host
	log := filepath.Join(config.Dir, "kine-nats.log")
	start(t, address, log, config.WatchProgressNotifyInterval)
	client, err := kubernetes.New(clientv3.Config{
		Endpoints:   []string{"http://" + address},
		DialTimeout: startLimit,
		DialOptions: []grpc.DialOption{grpc.WithBlock()},
		Logger:      zaptest.NewLogger(t, zaptest.Level(zapcore.ErrorLevel)).Named("client"),
	})
	if err != nil {
		text, _ := os.ReadFile(log)
		t.Fatalf("kine-nats does not serve: %v\n%s", err, text)
	}
	client.KV = storagetesting.NewKVRecorder(client.KV)
	client.Kubernetes = storagetesting.NewKubernetesRecorder(client.Kubernetes)
	t.Cleanup(func() { client.Close() })
	return client
}

func start(t testing.TB, address, log string, progress time.Duration) {
	id := make([]byte, 8)
	if _, err := rand.Read(id); err != nil {
		t.Fatal(err)
	}
	output, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	command := exec.Command(os.Getenv("KINE_NATS"),
		"--listen", "http://"+address,
		"--nats", os.Getenv("KINE_NATS_URL"),
		"--stream", "KINE_"+hex.EncodeToString(id),
		"--create",
		"--progress-interval", progress.String(),
	)
	// The environment variables of this test are also options of the process.
	command.Env = []string{"RUST_LOG=" + os.Getenv("RUST_LOG")}
	command.Stderr = output
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		command.Process.Kill()
		command.Wait()
	})
	for deadline := time.Now().Add(startLimit); ; {
		connection, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			connection.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(fmt.Errorf("kine-nats does not listen: %w", err))
		}
		time.Sleep(5 * time.Millisecond)
	}
}
