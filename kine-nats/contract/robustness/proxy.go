package main

import (
	"io"
	"net"
	"sync"
)

// proxy forwards TCP connections until it is told to stop.
type proxy struct {
	listener net.Listener
	target   string

	lock   sync.Mutex
	silent *sync.Cond
	held   bool
	open   map[net.Conn]struct{}
}

func newProxy(target string) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: listener, target: target, open: map[net.Conn]struct{}{}}
	p.silent = sync.NewCond(&p.lock)
	go p.accept()
	return p, nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// cut closes all connections; new ones are accepted.
func (p *proxy) cut() {
	p.lock.Lock()
	defer p.lock.Unlock()
	for connection := range p.open {
		connection.Close()
	}
}

// hold silently stops the delivery of data until the next release.
func (p *proxy) hold() {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.held = true
}

// release delivers the data that was held back.
func (p *proxy) release() {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.held = false
	p.silent.Broadcast()
}

func (p *proxy) close() {
	p.listener.Close()
	p.release()
	p.cut()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.carry(client)
	}
}

func (p *proxy) carry(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		client.Close()
		return
	}
	p.lock.Lock()
	p.open[client], p.open[server] = struct{}{}, struct{}{}
	p.lock.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		both.Go(func() {
			io.Copy(gate{way[1], p}, way[0])
			way[0].Close()
			way[1].Close()
		})
	}
	both.Wait()
	p.lock.Lock()
	delete(p.open, client)
	delete(p.open, server)
	p.lock.Unlock()
}

// gate writes to a connection when the proxy is not held.
type gate struct {
	net.Conn
	proxy *proxy
}

func (g gate) Write(data []byte) (int, error) {
	g.proxy.lock.Lock()
	for g.proxy.held {
		g.proxy.silent.Wait()
	}
	g.proxy.lock.Unlock()
	return g.Conn.Write(data)
}
