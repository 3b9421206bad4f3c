package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/tests/v3/robustness/client"
	"go.etcd.io/etcd/tests/v3/robustness/identity"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
	"go.etcd.io/etcd/tests/v3/robustness/validate"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
)

const (
	beforeFault = time.Second
	afterFault  = time.Second
	checkLimit  = 2 * time.Minute
	// Fewer requests than this in a run would prove little.
	leastAnswered = 100
)

// plan is one run.
type plan struct {
	fault
	kind
	shape
}

func (p plan) String() string {
	return fmt.Sprintf("%s, %s, %d nats-server, %d kine-nats", p.kind.name, p.fault.name, p.servers, p.members)
}

// run executes traffic with a fault on a new store, and checks the clients' observations against the log. It returns a
// summary of what was checked.
func (p plan) run(ctx context.Context, dir string) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := startStore(dir, p.shape, p.small)
	defer s.close()
	if err != nil {
		return "not started", err
	}
	recorder, err := record(ctx, s.natsURL, stream)
	if err != nil {
		return "the log is not readable", err
	}
	reports, err := p.simulate(ctx, s)
	if err != nil {
		return "stopped", err
	}
	first, last, err := bounds(ctx, s.natsURL, stream)
	if err != nil {
		return "the log is not readable", err
	}
	log, err := recorder.finish(last)
	if err != nil {
		return "the log is not readable", err
	}
	events := 0
	for _, r := range reports {
		events += r.WatchEventCount()
	}
	stats := traffic.CalculateStats(reports, 0, time.Hour)
	said := fmt.Sprintf("%d answered, %d failed, %d events, revision %d in %d records of %d epochs, %d of them purged, %d starts",
		stats.Successes, stats.Failures, events, log.revision, log.records, log.epochs, first-1, s.starts())
	if stats.Successes < leastAnswered {
		return said, errors.New("too few requests were answered to prove anything")
	}
	if p.seen != nil {
		if err := p.seen(s, log, stats.Failures); err != nil {
			return said, fmt.Errorf("%s was not felt: %w", p.fault.name, err)
		}
	}
	if most := report.OperationsMaxRevision(reports); most > log.revision {
		return said, fmt.Errorf("a client was told of revision %d, the log ends at %d", most, log.revision)
	}
	settled, err := log.settle(reports)
	if err != nil {
		return said, errors.Join(err, save(reports, dir))
	}
	said += fmt.Sprintf(", %d in doubt", settled.doubtful)
	if _, err := log.withOneMore().settle(reports); err == nil {
		return said, errors.New("the checks do not see that the log holds what nobody wrote")
	}
	reports = settled.reports
	config := validate.Config{ExpectRevisionUnique: p.ExpectUniqueRevision()}
	result := validate.ValidateAndReturnVisualize(logger(dir), config, reports, log.requests, checkLimit)
	if err := result.Error(); err != nil {
		return said, errors.Join(err, explain(&result.Linearization, reports, dir))
	}
	// The same checks must detect a write that is missing in the log.
	wrong := validate.ValidateAndReturnVisualize(zap.NewNop(), config, reports, log.withoutOne(settled.answered), checkLimit)
	if wrong.Error() == nil {
		return said, errors.New("the checks do not see that a write is missing from the log")
	}
	return said, nil
}

// simulate executes the traffic. The code is etcd's own, in the order of etcd's main_test.go, which supports only etcd
// clusters.
func (p plan) simulate(ctx context.Context, s *store) ([]report.ClientReport, error) {
	base, ids, endpoints := time.Now(), identity.NewIDProvider(), s.endpoints()
	clients, watchers := client.NewSet(ids, base), client.NewSet(ids, base)
	defer clients.Close()
	defer watchers.Close()
	if err := traffic.CheckEmptyDatabaseAtStart(ctx, zap.NewNop(), endpoints, clients); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	mostRevision := make(chan int64, 1)
	collected := make(chan error, 1)
	go func() {
		collected <- client.CollectClusterWatchEvents(ctx, client.CollectClusterWatchEventsParam{
			Lg: zap.NewNop(), Endpoints: endpoints, MaxRevisionChan: mostRevision, ClientSet: watchers,
		})
	}()
	finish := make(chan struct{})
	var loops sync.WaitGroup
	if err := p.begin(ctx, &loops, finish, endpoints, clients); err != nil {
		return nil, err
	}
	time.Sleep(beforeFault)
	if err := p.fault.do(s); err != nil {
		return nil, err
	}
	if err := s.ready(); err != nil {
		return nil, err
	}
	time.Sleep(afterFault)
	close(finish)
	loops.Wait()
	if err := last(clients, endpoints); err != nil {
		return nil, err
	}
	mostRevision <- report.OperationsMaxRevision(clients.Reports())
	select {
	case err := <-collected:
		if err != nil {
			return nil, err
		}
	case <-time.After(startLimit):
		return nil, errors.New("the watches of everything did not hear of all that was written")
	}
	return slices.Concat(clients.Reports(), watchers.Reports()), nil
}

func (p plan) begin(ctx context.Context, loops *sync.WaitGroup, finish <-chan struct{}, endpoints []string, clients *client.ClientSet) error {
	profile := traffic.KeyValueHigh
	limiter := rate.NewLimiter(rate.Limit(profile.MaximalQPS), profile.BurstableQPS)
	keys, objects := traffic.NewKeyStore(10, "key"), traffic.NewKubernetesStorage()
	err := traffic.SimulateKeyValueTraffic(ctx, loops, &profile, endpoints, clients, p, traffic.RunTrafficLoopParam{
		QPSLimiter:                         limiter,
		IDs:                                clients.IdentityProvider(),
		LeaseIDStorage:                     identity.NewLeaseIDStorage(),
		NonUniqueRequestConcurrencyLimiter: traffic.NewConcurrencyLimiter(profile.MaxNonUniqueRequestConcurrency),
		KeyStore:                           keys,
		Storage:                            objects,
		Finish:                             finish,
	})
	if err != nil {
		return err
	}
	watch, compaction := traffic.WatchDefault, traffic.CompactionDefault
	err = traffic.SimulateWatchTraffic(ctx, loops, &watch, endpoints, clients, p, traffic.RunWatchLoopParam{
		Config: watch, QPSLimiter: limiter, KeyStore: keys, Storage: objects, Finish: finish, Logger: zap.NewNop(),
	})
	if err != nil {
		return err
	}
	return traffic.SimulateCompactionTraffic(ctx, loops, &compaction, endpoints, clients, p, traffic.RunCompactLoopParam{
		Period: compaction.Period, Finish: finish,
	})
}

// last writes one more key: the checks require that the last request succeeded.
func last(clients *client.ClientSet, endpoints []string) error {
	c, err := clients.NewClient(endpoints)
	if err != nil {
		return err
	}
	defer c.Close()
	return eventually(func(ctx context.Context) error {
		_, err := c.Put(ctx, "tombstone", "true")
		return err
	})
}

func (s *store) starts() (all int) {
	for _, m := range s.members {
		m.lock.Lock()
		all += m.process.starts
		m.lock.Unlock()
	}
	return all
}

func logger(dir string) *zap.Logger {
	config := zap.NewProductionConfig()
	config.OutputPaths = []string{filepath.Join(dir, "checks.log")}
	log, err := config.Build()
	if err != nil {
		return zap.NewNop()
	}
	return log
}

// explain saves what is needed to understand a violation: the clients' observations, a picture of them, and the first
// requests that cannot be ordered.
func explain(result *validate.LinearizationResult, reports []report.ClientReport, dir string) error {
	if err := save(reports, dir); err != nil {
		return err
	}
	if result.Error() == nil {
		return nil
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "stuck.txt"), []byte(stuck(result, reports)), 0o644),
		porcupine.VisualizePath(result.Model, result.Info, filepath.Join(dir, "history.html")),
	)
}

// save stores the clients' observations.
func save(reports []report.ClientReport, dir string) error {
	saved, err := report.NewTestReport(zap.NewNop(), filepath.Join(dir, "reports"), nil, nil)
	if err != nil {
		return err
	}
	saved.SetClientReports(reports)
	return saved.SaveEtcdData()
}

// stuck returns the end of the longest order that the model accepts, and the requests that cannot follow it.
func stuck(result *validate.LinearizationResult, reports []report.ClientReport) string {
	var longest []porcupine.Operation
	for _, partition := range result.Info.PartialLinearizationsOperations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	type place struct {
		client int
		call   int64
	}
	ordered := map[place]bool{}
	for _, operation := range longest {
		ordered[place{operation.ClientId, operation.Call}] = true
	}
	var left []porcupine.Operation
	for _, r := range reports {
		for _, operation := range r.KeyValue {
			if !ordered[place{operation.ClientId, operation.Call}] {
				left = append(left, operation)
			}
		}
	}
	slices.SortFunc(left, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	var text strings.Builder
	tell := func(head string, operations []porcupine.Operation) {
		fmt.Fprintln(&text, head)
		for _, o := range operations {
			fmt.Fprintf(&text, "%d %d..%d %s\n", o.ClientId, o.Call, o.Return, result.Model.DescribeOperation(o.Input, o.Output))
		}
	}
	tell("accepted in this order, the last ones:", longest[max(0, len(longest)-40):])
	tell("not accepted, by the time of their answer:", left[:min(len(left), 40)])
	return text.String()
}
