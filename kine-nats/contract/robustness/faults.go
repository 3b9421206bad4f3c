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

// One of these is injected into the traffic of each run.
var faults = []fault{
	{name: "kill-writer", do: func(s *store) error {
		m := s.writer()
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
	{name: "stop-writer-shortly", do: func(s *store) error { return stop(s.writer().process, 0, lease/2) }},
	{name: "stop-writer-long", do: func(s *store) error { return stop(s.writer().process, lease, 3*lease) }},
	{name: "kill-leader", do: func(s *store) error {
		server := s.nats[s.leader()]
		server.kill()
		pause(0, time.Second)
		return server.start()
	}},
	{name: "stop-leader", do: func(s *store) error { return stop(s.nats[s.leader()], 0, 2*lease) }},
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
		member := s.writer()
		for _, proxy := range member.nats {
			proxy.hold()
		}
		pause(0, 2*lease)
		for _, proxy := range member.nats {
			proxy.release()
		}
		return nil
	}},
	// Acknowledgements come late: writes are in doubt.
	{name: "hold-nats-often", do: func(s *store) error {
		member := s.writer()
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
	{name: "kill-writer-and-leader", do: func(s *store) error {
		m, server := s.writer(), s.nats[s.leader()]
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
		number := s.leader()
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
