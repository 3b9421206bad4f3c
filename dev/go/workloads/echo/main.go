// Command echo is what tests put behind Services and NetworkPolicies: `echo` serves the pod's name on port 8080, and
// `echo get URL` asks another, exits 0 when it answered 200, and prints what it said.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	listen  = ":8080"
	timeout = 3 * time.Second
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
		return get(args[1])
	default:
		return fmt.Errorf("usage: echo [get URL]")
	}
}

func serve() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	// The first process of a container gets no default action for a signal: without this it would outlive every
	// deletion by the whole grace period.
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go func() { <-stop; os.Exit(0) }()

	server := &http.Server{
		Addr:              listen,
		ReadHeaderTimeout: timeout,
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) }),
	}
	return server.ListenAndServe()
}

func get(url string) error {
	client := &http.Client{Timeout: timeout}
	reply, err := client.Get(url)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if _, err := io.Copy(os.Stdout, reply.Body); err != nil {
		return err
	}
	if reply.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", url, reply.Status)
	}
	return nil
}
