//go:build tools

// Package natsserver pins the NATS server that the development stack builds.
package natsserver

import _ "github.com/nats-io/nats-server/v2"
