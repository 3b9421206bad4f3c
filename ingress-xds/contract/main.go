// Contract is an xDS client other than Envoy: Istio's, for the delta protocol. It subscribes to a server over mutual TLS. For
// each message, and for each call of a handler, it writes a line of JSON to standard output.
//
//	contract -address HOST:PORT -name NAME -certificates DIR -secret NAME -routes NAME [-refuse NAME]
//
// The directory has root-cert.pem, cert-chain.pem and key.pem. Every version of the resource named by -refuse is rejected.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tls "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	// Message types that occur inside others.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"istio.io/istio/pkg/adsc"
	"istio.io/istio/pkg/backoff"
	"istio.io/istio/pkg/log"
)

// Minimum and maximum delay before a reconnect.
const soon, late = 50 * time.Millisecond, 500 * time.Millisecond

// line is one event.
type line struct {
	// One of request, response, add, delete, synced or problem.
	Event string `json:"event"`
	// Resource type, without its package.
	Type string `json:"type,omitempty"`
	Name string `json:"name,omitempty"`
	// Names that a request subscribes to.
	Subscribe []string `json:"subscribe,omitempty"`
	// Versions that a request reports as present.
	Held map[string]string `json:"held,omitempty"`
	// Versions of the resources in a response.
	Resources map[string]string `json:"resources,omitempty"`
	// Names that a response removes.
	Removed []string `json:"removed,omitempty"`
	Error   string   `json:"error,omitempty"`
	// The added resource.
	Body json.RawMessage `json:"body,omitempty"`
}

var output sync.Mutex

func (l line) say() {
	text, err := json.Marshal(l)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(text))
}

// shortName is the name of a type without its package.
func shortName(typeURL string) string {
	return typeURL[strings.LastIndexByte(typeURL, '.')+1:]
}

// told reports added and deleted resources of a type, and rejects the one named refuse.
func told[T proto.Message](refuse string) adsc.Option {
	return adsc.Register(func(context adsc.HandlerContext, name, _ string, entity T, event adsc.Event) {
		said := line{Event: event.String(), Type: shortName(string(entity.ProtoReflect().Descriptor().FullName())), Name: name}
		if event == adsc.EventAdd {
			body, err := protojson.Marshal(entity)
			if err != nil {
				said.Error = err.Error()
			}
			said.Body = body
		}
		if name == refuse {
			context.Reject(errors.New("not to the client's liking"))
		}
		said.say()
	})
}

func main() {
	address := flag.String("address", "", "the server's address")
	name := flag.String("name", "", "the name in the server's certificate")
	certificates := flag.String("certificates", "", "the folder with the client's certificate")
	secret := flag.String("secret", "", "the certificate to subscribe to")
	routes := flag.String("routes", "", "the routes to subscribe to")
	refuse := flag.String("refuse", "", "the name of what to refuse")
	flag.Parse()
	options := log.DefaultOptions()
	options.OutputPaths = []string{"stderr"}
	if err := log.Configure(options); err != nil {
		panic(err)
	}
	held := versions{}
	config := &adsc.DeltaADSConfig{Config: adsc.Config{
		XDSSAN:   *name,
		CertDir:  *certificates,
		GrpcOpts: []grpc.DialOption{grpc.WithStreamInterceptor(held.intercept)},
	}}
	policy := backoff.NewExponentialBackOff(backoff.Option{InitialInterval: soon, MaxInterval: late})
	client := adsc.NewDeltaWithBackoffPolicy(*address, config, policy,
		told[*cluster.Cluster](*refuse), adsc.Watch[*cluster.Cluster]("*"),
		told[*endpoint.ClusterLoadAssignment](*refuse), adsc.Watch[*endpoint.ClusterLoadAssignment]("*"),
		told[*listener.Listener](*refuse), adsc.Watch[*listener.Listener]("*"),
		told[*route.RouteConfiguration](*refuse), adsc.Watch[*route.RouteConfiguration](*routes),
		told[*tls.Secret](*refuse), adsc.Watch[*tls.Secret](*secret),
	)
	go func() {
		<-client.Synced()
		line{Event: "synced"}.say()
	}()
	client.Run(context.Background())
	os.Exit(1)
}
