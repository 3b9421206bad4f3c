package main

import (
	"context"
	"fmt"
	"maps"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/types/known/anypb"
)

const endpoints = "ClusterLoadAssignment"

// versions are those that the client has accepted, by type and name. They survive a stream.
//
// Unlike Envoy, Istio's client does not report its versions when it reconnects, so they are added here to its first request of
// each type. It subscribes to all endpoints without a name, as Istio's server expects; the protocol requires a star.
type versions map[string]map[string]string

// stream reports the messages of a stream. Istio's client reads and writes it in one goroutine.
type stream struct {
	grpc.ClientStream
	held    versions
	opened  map[string]bool
	flights map[string]*discovery.DeltaDiscoveryResponse
}

func (v versions) intercept(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	opened, err := open(ctx, desc, conn, method, options...)
	if err != nil {
		return nil, err
	}
	return &stream{opened, v, map[string]bool{}, map[string]*discovery.DeltaDiscoveryResponse{}}, nil
}

func (s *stream) SendMsg(message any) error {
	request := message.(*discovery.DeltaDiscoveryRequest)
	kind := shortName(request.TypeUrl)
	if !s.opened[kind] {
		s.opened[kind] = true
		request.InitialResourceVersions = maps.Clone(s.held[kind])
		if kind == endpoints {
			request.ResourceNamesSubscribe = []string{"*"}
		}
	}
	// A request for endpoints has the nonce of the preceding response with clusters.
	if answered := s.flights[request.ResponseNonce]; answered.GetTypeUrl() == request.TypeUrl && request.ErrorDetail == nil {
		s.held.take(kind, answered)
	}
	line{
		Event:     "request",
		Type:      kind,
		Subscribe: request.ResourceNamesSubscribe,
		Held:      request.InitialResourceVersions,
		Error:     request.ErrorDetail.GetMessage(),
	}.say()
	return s.ClientStream.SendMsg(request)
}

func (s *stream) RecvMsg(message any) error {
	if err := s.ClientStream.RecvMsg(message); err != nil {
		return err
	}
	response := message.(*discovery.DeltaDiscoveryResponse)
	s.flights[response.Nonce] = response
	brought := map[string]string{}
	for _, resource := range response.Resources {
		brought[resource.Name] = resource.Version
		if err := check(resource.Resource); err != nil {
			line{Event: "problem", Type: shortName(response.TypeUrl), Name: resource.Name, Error: err.Error()}.say()
		}
	}
	line{Event: "response", Type: shortName(response.TypeUrl), Resources: brought, Removed: response.RemovedResources}.say()
	return nil
}

func (v versions) take(kind string, response *discovery.DeltaDiscoveryResponse) {
	if v[kind] == nil {
		v[kind] = map[string]string{}
	}
	for _, resource := range response.Resources {
		v[kind][resource.Name] = resource.Version
	}
	for _, name := range response.RemovedResources {
		delete(v[kind], name)
	}
}

// check validates a resource, and every message in it, by the rules in Envoy's own .proto files.
func check(resource *anypb.Any) error {
	return protorange.Range(resource.ProtoReflect(), func(path protopath.Values) error {
		last := path.Index(-1)
		value, ok := last.Value.Interface().(interface{ Interface() proto.Message })
		if !ok {
			return nil
		}
		inner := value.Interface()
		if wrapped, ok := inner.(*anypb.Any); ok {
			if _, err := wrapped.UnmarshalNew(); err != nil {
				return fmt.Errorf("%s: %w", path.Path, err)
			}
		}
		if rules, ok := inner.(interface{ ValidateAll() error }); ok {
			if err := rules.ValidateAll(); err != nil {
				return fmt.Errorf("%s: %w", path.Path, err)
			}
		}
		return nil
	})
}
