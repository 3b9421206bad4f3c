// Command echo is what tests put behind Services and NetworkPolicies: `echo` serves the pod's name on port 8080, and
// `echo get URL` asks another, exits 0 when it answered 200, and prints what it said. `echo deny FOLDER` is an admission
// webhook on port 8443 that says no; its tls.crt and tls.key are in the folder.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	listen    = ":8080"
	listenTLS = ":8443"
	timeout   = 3 * time.Second
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
	case len(args) == 2 && args[0] == "deny":
		return deny(args[1])
	default:
		return fmt.Errorf("usage: echo [get URL | deny FOLDER]")
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

// The first process of a container gets no default action for a signal: without this it would outlive every deletion by
// the whole grace period.
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
