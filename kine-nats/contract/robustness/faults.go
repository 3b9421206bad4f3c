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
	// Whether every nats-server needs a small disk for it.
	small bool
}

// lease is how long a writer may believe that it is the only one (LEASE in kine-nats).
const lease = 2 * time.Second

// One of these is injected into the traffic of each run. A member is picked by chance: in a store of two it is as often
// the follower as the writer.
var faults = []fault{
	{name: "kill-kine-nats", do: func(s *store) error {
		m := pick(s.members)
		m.kill()
		pause(0, 500*time.Millisecond)
		return m.start()
	}},
	{name: "kill-all-kine-nats", do: func(s *store) error {
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
	{name: "stop-kine-nats-shortly", do: func(s *store) error { return stop(pick(s.members).process, 0, lease/2) }},
	{name: "stop-kine-nats-long", do: func(s *store) error { return stop(pick(s.members).process, lease, 3*lease) }},
	{name: "kill-nats", do: func(s *store) error {
		server := pick(s.nats)
		server.kill()
		pause(0, time.Second)
		return server.start()
	}},
	{name: "stop-nats", do: func(s *store) error { return stop(pick(s.nats), 0, 2*lease) }},
	{name: "cut-clients", do: func(s *store) error {
		for range 5 {
			pick(s.members).clients.cut()
			pause(0, 200*time.Millisecond)
		}
		return nil
	}},
	{name: "cut-nats", do: func(s *store) error {
		for range 5 {
			pick(pick(s.members).nats).cut()
			pause(0, 200*time.Millisecond)
		}
		return nil
	}},
	// A partition: the process runs and serves clients, and hears nothing of the log.
	{name: "hold-nats", do: func(s *store) error {
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
	{name: "hold-nats-often", do: func(s *store) error {
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
	{name: "kill-kine-nats-and-nats", do: func(s *store) error {
		m, server := pick(s.members), pick(s.nats)
		m.kill()
		server.kill()
		pause(0, 500*time.Millisecond)
		if err := server.start(); err != nil {
			return err
		}
		return m.start()
	}},
	// The server gives JetStream up when it cannot write, and has it again after a restart on a disk with room.
	{name: "full-disk", small: true, do: func(s *store) error {
		number := rand.Intn(len(s.nats))
		if err := s.disks[number].fill(); err != nil {
			return err
		}
		pause(0, lease)
		if err := s.disks[number].free(); err != nil {
			return err
		}
		s.nats[number].kill()
		return s.nats[number].start()
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
