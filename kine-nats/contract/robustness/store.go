package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const (
	startLimit = 30 * time.Second
	stream     = "KINE_robust"
)

// process is a server that is restarted when it exits, unless it is kept down.
type process struct {
	arguments []string
	log       string

	lock    sync.Mutex
	command *exec.Cmd
	down    bool
	starts  int
}

func startProcess(log string, arguments ...string) (*process, error) {
	p := &process{arguments: arguments, log: log}
	p.lock.Lock()
	defer p.lock.Unlock()
	return p, p.begin()
}

func (p *process) begin() error {
	output, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer output.Close()
	command := exec.Command(p.arguments[0], p.arguments[1:]...)
	command.Stdout, command.Stderr = output, output
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		return fmt.Errorf("start %s: %w", strings.Join(p.arguments, " "), err)
	}
	p.command, p.down = command, false
	p.starts++
	go p.supervise(command)
	return nil
}

func (p *process) supervise(command *exec.Cmd) {
	command.Wait()
	// Restart after a short delay, like a kubelet.
	time.Sleep(50 * time.Millisecond)
	p.lock.Lock()
	defer p.lock.Unlock()
	if !p.down && p.command == command {
		if err := p.begin(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

func (p *process) signal(signal syscall.Signal) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.command.Process.Signal(signal)
}

// kill stops the process and keeps it down until start.
func (p *process) kill() {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.down = true
	p.command.Process.Kill()
}

func (p *process) start() error {
	p.lock.Lock()
	defer p.lock.Unlock()
	if !p.down {
		return nil
	}
	return p.begin()
}

// member is a kine-nats with proxies before and behind it.
type member struct {
	*process
	clients *proxy
	nats    []*proxy
	metrics string
}

// store is the system under test: nats-servers and the kine-nats on them.
type store struct {
	nats    []*process
	disks   []*disk
	natsURL string
	members []*member
	close   func()
}

// startStore starts an empty store of the given number of nats-servers and kine-nats. With small, each nats-server has a
// small disk of its own.
func startStore(dir string, shape shape, small bool) (*store, error) {
	s := &store{}
	s.close = func() {
		for _, m := range s.members {
			m.kill()
			m.clients.close()
			for _, p := range m.nats {
				p.close()
			}
		}
		for _, p := range s.nats {
			p.kill()
		}
		for _, d := range s.disks {
			d.close()
		}
	}
	addresses, err := s.startNATS(dir, shape.servers, small)
	if err != nil {
		return s, err
	}
	s.natsURL = "nats://" + strings.Join(addresses, ",nats://")
	for number := range shape.members {
		m, err := startMember(filepath.Join(dir, fmt.Sprintf("kine-nats-%d.log", number)), addresses, shape.members > 1)
		if err != nil {
			return s, err
		}
		s.members = append(s.members, m)
	}
	return s, s.ready()
}

func (s *store) startNATS(dir string, servers int, small bool) ([]string, error) {
	// Addresses for clients, for the other servers and for monitoring.
	var addresses [3][]string
	for kind := range addresses {
		for range servers {
			address, err := freeAddress()
			if err != nil {
				return nil, err
			}
			addresses[kind] = append(addresses[kind], address)
		}
	}
	clients, routes, monitors := addresses[0], addresses[1], addresses[2]
	for i := range servers {
		home := filepath.Join(dir, fmt.Sprintf("nats-%d", i))
		if err := os.MkdirAll(home, 0o755); err != nil {
			return nil, err
		}
		if small {
			d, err := newDisk(home)
			if err != nil {
				return nil, err
			}
			s.disks = append(s.disks, d)
		}
		config := fmt.Sprintf("listen: %q\nhttp: %q\nserver_name: n%d\nmax_payload: 8MB\n"+
			"jetstream { store_dir: %q, max_file_store: 1TB, sync_interval: always }\n", clients[i], monitors[i], i, home)
		if servers > 1 {
			// The servers do not advertise each other to clients, which would bypass the proxies.
			config += fmt.Sprintf("cluster { name: robust, listen: %q, no_advertise: true, routes: [nats://%s] }\n",
				routes[i], strings.Join(routes, ", nats://"))
		}
		path := home + ".conf"
		if err := os.WriteFile(path, []byte(config), 0o644); err != nil {
			return nil, err
		}
		p, err := startProcess(home+".log", "nats-server", "-c", path)
		if err != nil {
			return nil, err
		}
		s.nats = append(s.nats, p)
	}
	for _, monitor := range monitors {
		if err := healthy("http://" + monitor + "/healthz"); err != nil {
			return nil, fmt.Errorf("nats-server: %w", err)
		}
	}
	return clients, nil
}

func startMember(log string, nats []string, follow bool) (*member, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	m := &member{}
	if m.clients, err = newProxy(address); err != nil {
		return nil, err
	}
	var urls []string
	for _, server := range nats {
		p, err := newProxy(server)
		if err != nil {
			return nil, err
		}
		m.nats = append(m.nats, p)
		urls = append(urls, "nats://"+p.address())
	}
	arguments := []string{
		os.Getenv("KINE_NATS"),
		"--listen=http://" + address,
		"--nats=" + strings.Join(urls, ","),
		"--stream=" + stream,
		"--create",
		fmt.Sprintf("--replicas=%d", len(nats)),
		"--progress-interval=100ms",
		// A restarted process starts with a snapshot, and the records that it covers are purged, some hundred at a time. They
		// must be read before that.
		"--snapshot-bytes=60000",
	}
	if follow {
		arguments = append(arguments, "--follow")
	}
	m.process, err = startProcess(log, arguments...)
	return m, err
}

// endpoints are the client addresses of each kine-nats.
func (s *store) endpoints() []string {
	var addresses []string
	for _, m := range s.members {
		addresses = append(addresses, m.clients.address())
	}
	return addresses
}

// writer is the kine-nats that reports itself as the leader.
func (s *store) writer() (writer *member, err error) {
	err = eventually(func(ctx context.Context) error {
		for _, m := range s.members {
			client, err := clientv3.New(clientv3.Config{Endpoints: []string{m.clients.address()}, Logger: zap.NewNop()})
			if err != nil {
				return err
			}
			defer client.Close()
			status, err := client.Status(ctx, m.clients.address())
			if err == nil && status.Leader == status.Header.MemberId {
				writer = m
				return nil
			}
		}
		return errors.New("no kine-nats says that it writes")
	})
	return writer, err
}

// leader is the number of the nats-server that leads the log.
func (s *store) leader() (number int, err error) {
	if len(s.nats) == 1 {
		return 0, nil
	}
	err = eventually(func(ctx context.Context) error {
		connection, log, err := open(ctx, s.natsURL, stream)
		if err != nil {
			return err
		}
		defer connection.Close()
		if log.CachedInfo().Cluster == nil {
			return errors.New("the log is in no cluster")
		}
		// Its name, as startNATS gives it.
		_, err = fmt.Sscanf(log.CachedInfo().Cluster.Leader, "n%d", &number)
		return err
	})
	return number, err
}

// ready waits until every kine-nats answers a linearizable read.
func (s *store) ready() error {
	for _, endpoint := range s.endpoints() {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
		if err != nil {
			return err
		}
		defer client.Close()
		err = eventually(func(ctx context.Context) error {
			_, err := client.Get(ctx, "ready")
			return err
		})
		if err != nil {
			return fmt.Errorf("kine-nats: %w", err)
		}
	}
	return nil
}

func healthy(url string) error {
	return eventually(func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, answer.Status)
		}
		return nil
	})
}

// eventually retries until there is no error, or until a timeout.
func eventually(try func(context.Context) error) error {
	for deadline := time.Now().Add(startLimit); ; {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := try(ctx)
		cancel()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %s: %w", startLimit, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
