package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// diskBytes is the size of a small disk: enough for a run, and soon filled.
const diskBytes = 256 << 20

// disk is a file system of its own that can be filled up.
type disk struct{ dir string }

// newDisk mounts one in memory. It wants root, and a mount namespace that ends with the process.
func newDisk(dir string) (*disk, error) {
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", diskBytes))
	if err != nil {
		return nil, fmt.Errorf("mount a small disk at %s (be root, or choose another -fault): %w", dir, err)
	}
	return &disk{dir}, nil
}

func (d *disk) ballast() string { return filepath.Join(d.dir, "ballast") }

// fill leaves no byte free.
func (d *disk) fill() error {
	file, err := os.Create(d.ballast())
	if err != nil {
		return err
	}
	defer file.Close()
	block := make([]byte, 1<<20)
	for {
		_, err := file.Write(block)
		switch {
		case err == nil:
		case !errors.Is(err, syscall.ENOSPC):
			return fmt.Errorf("fill the disk: %w", err)
		case len(block) == 1:
			return nil
		default:
			block = block[:len(block)/2]
		}
	}
}

// free takes back what fill took.
func (d *disk) free() error { return os.Remove(d.ballast()) }

func (d *disk) close() { syscall.Unmount(d.dir, syscall.MNT_DETACH) }
