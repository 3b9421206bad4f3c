// Command echo is the workload that tests run in Pods:
//
//   - `echo` serves the pod's name on port 8080.
//   - `echo get URL` sends a request, prints the answer, and exits 0 if the status is 200. For https it authenticates as the
//     pod's service account.
//   - `echo poll URL` sends ten requests per second, each on a new connection, and prints a line for each answer.
//   - `echo deny FOLDER` serves an admission webhook on port 8443 that rejects everything. The folder holds tls.crt and tls.key.
//   - `echo type` prints a line that is typed on its terminal, and fails without a terminal.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

const (
	listen    = ":8080"
	listenTLS = ":8443"
	timeout   = 3 * time.Second
	// Timeout of a name lookup without answer: kube-proxy may not know yet that cluster DNS is ready.
	lookup  = 12 * time.Second
	pause   = 100 * time.Millisecond
	account = "/var/run/secrets/kubernetes.io/serviceaccount/"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 0:
		return serve()
	case len(args) == 2 && args[0] == "get":
		answer, err := get(args[1])
		fmt.Print(answer)
		return err
	case len(args) == 2 && args[0] == "poll":
		return poll(args[1])
	case len(args) == 2 && args[0] == "deny":
		return deny(args[1])
	case len(args) == 1 && args[0] == "type":
		return repeat()
	default:
		return fmt.Errorf("usage: echo [get URL | poll URL | deny FOLDER | type]")
	}
}

func serve() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	endWithSignal()
	server := &http.Server{
		Addr:              listen,
		ReadHeaderTimeout: timeout,
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) }),
	}
	return server.ListenAndServe()
}

// endWithSignal exits on SIGTERM and SIGINT. The first process of a container has no default action for signals. Without this,
// it would outlive every deletion by the whole grace period.
func endWithSignal() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go func() { <-stop; os.Exit(0) }()
}

func deny(folder string) error {
	endWithSignal()
	server := &http.Server{
		Addr:              listenTLS,
		ReadHeaderTimeout: timeout,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var review struct {
				Request struct {
					UID string `json:"uid"`
				} `json:"request"`
			}
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			json.NewEncoder(w).Encode(map[string]any{
				"apiVersion": "admission.k8s.io/v1",
				"kind":       "AdmissionReview",
				"response": map[string]any{
					"uid":     review.Request.UID,
					"allowed": false,
					"status":  map[string]any{"message": "the worker says no"},
				},
			})
		}),
	}
	return server.ListenAndServeTLS(folder+"/tls.crt", folder+"/tls.key")
}

func poll(url string) error {
	endWithSignal()
	for {
		answer, err := get(url)
		if err != nil {
			answer = fmt.Sprintf("error: %v", err)
		}
		fmt.Println(strings.TrimSpace(answer))
		time.Sleep(pause)
	}
}

func repeat() error {
	var attributes syscall.Termios
	_, _, failed := syscall.Syscall(syscall.SYS_IOCTL, os.Stdin.Fd(), syscall.TCGETS, uintptr(unsafe.Pointer(&attributes)))
	if failed != 0 {
		return fmt.Errorf("standard input is no terminal: %w", failed)
	}
	fmt.Print("type: ")
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return err
	}
	fmt.Printf("typed %q\n", line)
	return nil
}

func get(url string) (string, error) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	addresses, err := find(request.URL.Hostname())
	if err != nil {
		return "", err
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: dial(addresses[0])}
	if request.URL.Scheme == "https" {
		if err := asAccount(request, transport); err != nil {
			return "", err
		}
	}
	client := &http.Client{Timeout: timeout, Transport: transport}
	reply, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	answer, err := io.ReadAll(reply.Body)
	if err != nil {
		return "", err
	}
	if reply.StatusCode != http.StatusOK {
		return string(answer), fmt.Errorf("%s answered %s", url, reply.Status)
	}
	return string(answer), nil
}

// find resolves a host name. Go's resolver continues with the next search domain when two queries for one were lost, and then
// returns the answer for the last domain. So each attempt here times out before that.
func find(host string) ([]string, error) {
	for end := time.Now().Add(lookup); ; {
		try, cancel := context.WithTimeout(context.Background(), timeout)
		addresses, err := net.DefaultResolver.LookupHost(try, host)
		cancel()
		var unanswered *net.DNSError
		if !errors.As(err, &unanswered) || !unanswered.IsTimeout || time.Now().After(end) {
			return addresses, err
		}
	}
}

func dial(address string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, named string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(named)
		if err != nil {
			return nil, err
		}
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(address, port))
	}
}

func asAccount(request *http.Request, transport *http.Transport) error {
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	request.Header.Set("Authorization", "Bearer "+string(token))
	return nil
}
