// Command device-plugin offers a device to Pods, like the device plugins of vendors: `device-plugin RESOURCE FILE`. It offers no
// device if the file is not one. With a third argument `blind` it does not check the file, like plugins that find devices in /sys.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const timeout = 10 * time.Second

type plugin struct {
	api.UnimplementedDevicePluginServer
	file    string
	devices []*api.Device
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "device-plugin:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 && (len(args) != 3 || args[2] != "blind") {
		return fmt.Errorf("usage: device-plugin RESOURCE FILE [blind]")
	}
	resource, file := args[0], args[1]
	served := &plugin{file: file}
	if len(args) == 3 || isDevice(file) {
		served.devices = []*api.Device{{ID: "0", Health: api.Healthy}}
	}
	endpoint := strings.ReplaceAll(resource, "/", "-") + ".sock"
	path := api.DevicePluginPath + endpoint
	// A killed plugin leaves its socket.
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, served)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go func() { <-stop; os.Exit(0) }()
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	if err := register(endpoint, resource); err != nil {
		return err
	}
	return <-failed
}

func isDevice(file string) bool {
	found, err := os.Stat(file)
	return err == nil && found.Mode()&os.ModeCharDevice != 0
}

func register(endpoint, resource string) error {
	connection, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	limited, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	request := &api.RegisterRequest{Version: api.Version, Endpoint: endpoint, ResourceName: resource}
	_, err = api.NewRegistrationClient(connection).Register(limited, request)
	return err
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for range request.ContainerRequests {
		device := &api.DeviceSpec{ContainerPath: "/dev/gpu0", HostPath: p.file, Permissions: "rw"}
		response.ContainerResponses = append(response.ContainerResponses,
			&api.ContainerAllocateResponse{Devices: []*api.DeviceSpec{device}})
	}
	return response, nil
}
