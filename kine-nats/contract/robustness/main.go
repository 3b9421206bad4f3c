// Robustness drives etcd's robustness tests against kine-nats: their traffic, their model and their checks, unchanged,
// with faults of our own, and with the content of our log instead of etcd's.
//
//	robustness [-runs N] [-seed N] [-fault NAME] [-traffic NAME] [-shape SHAPE] [-keep DIR]
//
// KINE_NATS names the binary; nats-server is in PATH. Every run prints its seed, from which its traffic, its fault and
// their times follow; how processes interleave does not. A run that fails keeps its logs and a picture of its history.
//
//go:debug randseednop=0
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"time"

	"go.etcd.io/etcd/tests/v3/robustness/traffic"
)

// kind is traffic with its name.
type kind struct {
	name string
	traffic.Traffic
}

var kinds = []kind{
	{"kubernetes", traffic.Kubernetes},
	{"kubernetes-create-delete", traffic.KubernetesCreateDelete},
	{"etcd", traffic.EtcdPutDeleteLease},
}

// shape is the number of nats-servers and kine-nats of a store.
type shape struct{ servers, members int }

func (s shape) String() string { return fmt.Sprintf("%dx%d", s.servers, s.members) }

// The classes single and replicated, each alone and with a follower.
var shapes = []shape{{1, 1}, {3, 1}, {1, 2}, {3, 2}}

func main() {
	runs := flag.Int("runs", 1, "how many runs")
	seed := flag.Int64("seed", 0, "the first run's seed; 0 for one of the time")
	onlyFault := flag.String("fault", "", "the one fault to inject")
	onlyShape := flag.String("shape", "", "the one shape: nats-servers and kine-nats, as in 3x2")
	onlyTraffic := flag.String("traffic", "", "the one traffic to make")
	keep := flag.String("keep", os.TempDir(), "where runs that fail leave their files")
	flag.Parse()
	if *seed == 0 {
		*seed = time.Now().UnixNano() % 1e9
	}
	failed := 0
	for number := range *runs {
		seed := *seed + int64(number)
		if err := one(seed, *onlyFault, *onlyTraffic, *onlyShape, *keep); err != nil {
			fmt.Printf("robustness: seed %d: FAILED: %v\n", seed, err)
			failed++
		}
	}
	fmt.Printf("robustness: %d runs, %d failed\n", *runs, failed)
	if failed > 0 {
		os.Exit(1)
	}
}

// planOf maps consecutive seeds to all faults in turn. Each round of faults uses the next traffic and the next shape. The
// counts share no factor, so the rounds cover all combinations of the three.
func planOf(seed int64) plan {
	number, round := int(seed)%len(faults), int(seed)/len(faults)
	return plan{
		fault: faults[number],
		kind:  kinds[(number+round)%len(kinds)],
		shape: shapes[(number+round)%len(shapes)],
	}
}

// one executes the run of a seed, and prints its result.
func one(seed int64, onlyFault, onlyTraffic, onlyShape, keep string) error {
	rand.Seed(seed)
	plan := planOf(seed)
	for _, f := range faults {
		if f.name == onlyFault {
			plan.fault = f
		}
	}
	for _, k := range kinds {
		if k.name == onlyTraffic {
			plan.kind = k
		}
	}
	for _, s := range shapes {
		if s.String() == onlyShape {
			plan.shape = s
		}
	}
	dir, err := os.MkdirTemp(keep, fmt.Sprintf("robustness-%d-", seed))
	if err != nil {
		return err
	}
	said, err := plan.run(context.Background(), dir)
	fmt.Printf("robustness: seed %d: %s: %s\n", seed, plan, said)
	if err != nil {
		return fmt.Errorf("%w (%s)", err, dir)
	}
	return os.RemoveAll(dir)
}
