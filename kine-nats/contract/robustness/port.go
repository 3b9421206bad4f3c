package main

import (
	"errors"
	"fmt"
	"net"
	"os"
)

// Beneath node ports and outgoing connections: none of these is taken between the moment it is chosen and the moment its
// server listens, nor while that server is restarted. The tests in Rust take theirs from the same range, by the same names.
const firstPort, lastPort = 20_000, 29_999

// addresses that this process has reserved, until it exits.
var taken []net.Listener

// freeAddress returns a loopback address that no process listens on.
func freeAddress() (string, error) {
	for step := range lastPort - firstPort + 1 {
		port := firstPort + (os.Getpid()*101+len(taken)+step)%(lastPort-firstPort+1)
		// A name in the abstract namespace of unix sockets has one owner, and is released with it.
		lock, err := net.Listen("unix", fmt.Sprintf("@yoke-test-port-%d", port))
		if err != nil {
			continue
		}
		address := fmt.Sprintf("127.0.0.1:%d", port)
		listener, err := net.Listen("tcp", address)
		if err != nil {
			lock.Close()
			continue
		}
		taken = append(taken, lock)
		return address, listener.Close()
	}
	return "", errors.New("no port from 20000 to 29999 is free")
}
