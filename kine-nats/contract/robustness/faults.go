package main

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"syscall"
	"time"
)

// fault disturbs a store for a while and leaves it able to recover.
type fault struct {
	name string
	do   func(*store) error
	// Returns an error if the store, its log and the number of unanswered requests show no trace of the fault; nil if it
	// need not leave one.
	seen func(s *store, h *history, failed int) error
	// Whether every nats-server needs a small disk for it.
	small bool
}

// lease is how long a writer may believe that it is the only one (LEASE in kine-nats).
const lease = 2 * time.Second

// faults lists all faults; each run injects one of them into its traffic.
var faults = []fault{
	{name: "kill-writer", seen: anotherStart, do: func(s *store) error {
		m, err := s.writer()
		if err != nil {
			return err
		}
		m.kill()
		pause(0, 500*time.Millisecond)
		return m.start()
	}},
	{name: "kill-all-kine-nats", seen: anotherStart, do: func(s *store) error {
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
	// Shorter and longer than the lease. In a store of two, the other process then becomes the writer, and both write when
	// this one resumes.
	{name: "stop-writer-shortly", do: func(s *store) error { return stopWriter(s, 0, lease/2) }},
	{name: "stop-writer-long", seen: anotherWriter, do: func(s *store) error { return stopWriter(s, 3*lease/2, 3*lease) }},
	{name: "kill-leader", seen: unanswered, do: func(s *store) error {
		number, err := s.leader()
		if err != nil {
			return err
		}
		s.nats[number].kill()
		pause(300*time.Millisecond, time.Second)
		return s.nats[number].start()
	}},
	{name: "stop-leader", seen: unanswered, do: func(s *store) error {
		number, err := s.leader()
		if err != nil {
			return err
		}
		return stop(s.nats[number], lease/2, 2*lease)
	}},
	{name: "cut-clients", seen: unanswered, do: func(s *store) error {
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
	// A partition: the process runs and serves clients, but receives nothing from the log.
	{name: "hold-nats", seen: anotherWriter, do: func(s *store) error {
		m, err := s.writer()
		if err != nil {
			return err
		}
		for _, proxy := range m.nats {
			proxy.hold()
		}
		pause(3*lease/2, 3*lease)
		for _, proxy := range m.nats {
			proxy.release()
		}
		return nil
	}},
	// Acknowledgements are late: writes are in doubt.
	{name: "hold-nats-often", seen: unanswered, do: func(s *store) error {
		m, err := s.writer()
		if err != nil {
			return err
		}
		for range 10 {
			for _, proxy := range m.nats {
				proxy.hold()
			}
			pause(0, 150*time.Millisecond)
			for _, proxy := range m.nats {
				proxy.release()
				proxy.cut()
			}
			pause(0, 150*time.Millisecond)
		}
		return nil
	}},
	{name: "kill-writer-and-leader", seen: anotherStart, do: func(s *store) error {
		m, err := s.writer()
		if err != nil {
			return err
		}
		number, err := s.leader()
		if err != nil {
			return err
		}
		m.kill()
		s.nats[number].kill()
		pause(0, 500*time.Millisecond)
		if err := s.nats[number].start(); err != nil {
			return err
		}
		return m.start()
	}},
	// The server disables JetStream when it cannot write, and enables it again after a restart on a disk with room.
	{name: "full-disk", small: true, seen: noRoom, do: func(s *store) error {
		number, err := s.leader()
		if err != nil {
			return err
		}
		if err := s.disks[number].fill(); err != nil {
			return err
		}
		pause(lease/2, lease)
		if err := s.disks[number].free(); err != nil {
			return err
		}
		s.nats[number].kill()
		return s.nats[number].start()
	}},
}

func stopWriter(s *store, least, most time.Duration) error {
	m, err := s.writer()
	if err != nil {
		return err
	}
	return stop(m.process, least, most)
}

func stop(p *process, least, most time.Duration) error {
	p.signal(syscall.SIGSTOP)
	pause(least, most)
	p.signal(syscall.SIGCONT)
	return nil
}

func anotherStart(s *store, _ *history, _ int) error {
	if s.starts() == len(s.members) {
		return errors.New("no kine-nats was started again")
	}
	return nil
}

// anotherWriter is the check that another process took over. A store of one process has none, so no request is answered.
func anotherWriter(s *store, h *history, failed int) error {
	if len(s.members) > 1 && h.epochs < 2 {
		return errors.New("the other kine-nats did not begin to write")
	}
	return unanswered(s, h, failed)
}

func unanswered(_ *store, _ *history, failed int) error {
	if failed == 0 {
		return errors.New("every request was answered")
	}
	return nil
}

func noRoom(s *store, _ *history, _ int) error {
	for _, server := range s.nats {
		if text, err := os.ReadFile(server.log); err != nil {
			return fmt.Errorf("read what nats-server said: %w", err)
		} else if strings.Contains(string(text), "no space left on device") {
			return nil
		}
	}
	return errors.New("no nats-server ran out of room")
}

func pick[T any](from []T) T { return from[rand.Intn(len(from))] }

// pause waits for a random time between two limits.
func pause(least, most time.Duration) {
	time.Sleep(least + time.Duration(rand.Int63n(int64(most-least))))
}
