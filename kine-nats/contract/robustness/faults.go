package main

import (
	"math/rand"
	"syscall"
	"time"
)

// fault disturbs a store for a while and leaves it able to mend itself.
type fault struct {
	name string
	do   func(*store) error
}

// lease is how long a writer may believe that it is the only one (LEASE in kine-nats).
const lease = 2 * time.Second

// One of these is injected into the traffic of each run. A member is picked by chance: in a store of two it is as often
// the follower as the writer.
var faults = []fault{
	{"kill-kine-nats", func(s *store) error {
		m := pick(s.members)
		m.kill()
		pause(0, 500*time.Millisecond)
		return m.start()
	}},
	{"kill-all-kine-nats", func(s *store) error {
		for _, m := range s.members {
			m.kill()
		}
		pause(0, 500*time.Millisecond)
		for _, m := range s.members {
			if err := m.start(); err != nil {
				return err
			}
		}
		return nil
	}},
	// Shorter than the lease, and longer: in a store of two the other one writes then, and both do when it goes on.
	{"stop-kine-nats-shortly", func(s *store) error { return stop(pick(s.members).process, 0, lease/2) }},
	{"stop-kine-nats-long", func(s *store) error { return stop(pick(s.members).process, lease, 3*lease) }},
	{"kill-nats", func(s *store) error {
		server := pick(s.nats)
		server.kill()
		pause(0, time.Second)
		return server.start()
	}},
	{"stop-nats", func(s *store) error { return stop(pick(s.nats), 0, 2*lease) }},
	{"cut-clients", func(s *store) error {
		for range 5 {
			pick(s.members).clients.cut()
			pause(0, 200*time.Millisecond)
		}
		return nil
	}},
	{"cut-nats", func(s *store) error {
		for range 5 {
			pick(pick(s.members).nats).cut()
			pause(0, 200*time.Millisecond)
		}
		return nil
	}},
	// A partition: the process runs and serves clients, and hears nothing of the log.
	{"hold-nats", func(s *store) error {
		member := pick(s.members)
		for _, proxy := range member.nats {
			proxy.hold()
		}
		pause(0, 3*lease)
		for _, proxy := range member.nats {
			proxy.release()
		}
		return nil
	}},
	// Acknowledgements come late: writes are in doubt.
	{"hold-nats-often", func(s *store) error {
		member := pick(s.members)
		for range 10 {
			for _, proxy := range member.nats {
				proxy.hold()
			}
			pause(0, 150*time.Millisecond)
			for _, proxy := range member.nats {
				proxy.release()
				proxy.cut()
			}
			pause(0, 150*time.Millisecond)
		}
		return nil
	}},
	{"kill-kine-nats-and-nats", func(s *store) error {
		m, server := pick(s.members), pick(s.nats)
		m.kill()
		server.kill()
		pause(0, 500*time.Millisecond)
		if err := server.start(); err != nil {
			return err
		}
		return m.start()
	}},
}

func stop(p *process, least, most time.Duration) error {
	p.signal(syscall.SIGSTOP)
	pause(least, most)
	p.signal(syscall.SIGCONT)
	return nil
}

func pick[T any](from []T) T { return from[rand.Intn(len(from))] }

// pause waits for some time between two.
func pause(least, most time.Duration) {
	time.Sleep(least + time.Duration(rand.Int63n(int64(most-least))))
}
