package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/zeebo/xxh3"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"google.golang.org/protobuf/proto"
)

// Reads what kine-nats stored from the bytes of its log, in the format that the head of codec.rs describes. The result
// depends neither on a watch nor on the code under test.

const (
	recordHead = 64
	recordHash = 8
	readLimit  = 30 * time.Second
	// A request that a server received before it exited is never answered, and the following messages may soon be purged.
	answerLimit = 100 * time.Millisecond
	opChange    = 1
	opGrant     = 3
	opRevoke    = 4
	opCompact   = 5
	opEpoch     = 6
	opResign    = 7
	recordMagic = "KNL1"
	// Largest number of records that a writer has in flight behind the one that it waits for.
	inFlight = 3
	// Largest number of records in one request.
	mostAhead = 16
)

// history is the content of a log.
type history struct {
	requests []model.EtcdRequest
	// The revision after each of the requests.
	revisions []int64
	records   int
	epochs    int
	revision  int64
	// The newest record and its writer.
	hash, epoch, writer uint64
	// Void records: those of replaced writers, and those that continue a record that one of these displaced.
	void, displaced int
}

// recorder reads a stream while it is written, because records that snapshots supersede are soon purged.
type recorder struct {
	log    history
	next   uint64
	end    chan uint64
	result chan error
}

// open connects to a stream. The caller closes the connection.
func open(ctx context.Context, url, stream string, options ...nats.Option) (*nats.Conn, jetstream.Stream, error) {
	connection, err := nats.Connect(url, options...)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	js, err := jetstream.New(connection)
	if err != nil {
		connection.Close()
		return nil, nil, err
	}
	source, err := js.Stream(ctx, stream)
	if err != nil {
		connection.Close()
		return nil, nil, fmt.Errorf("find %s: %w", stream, err)
	}
	return connection, source, nil
}

// record starts to read a stream from its first message.
func record(ctx context.Context, url, stream string) (*recorder, error) {
	connection, source, err := open(ctx, url, stream, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		return nil, err
	}
	r := &recorder{log: history{revision: 1}, next: 1, end: make(chan uint64, 1), result: make(chan error, 1)}
	go func() {
		defer connection.Close()
		r.result <- r.read(ctx, source)
	}()
	return r, nil
}

// finish returns the content of the stream up to a sequence.
func (r *recorder) finish(last uint64) (*history, error) {
	r.end <- last
	select {
	case err := <-r.result:
		return &r.log, err
	case <-time.After(readLimit):
		return nil, fmt.Errorf("the log is not read to message %d within %s", last, readLimit)
	}
}

func (r *recorder) read(ctx context.Context, source jetstream.Stream) error {
	last := uint64(math.MaxUint64)
	ahead := 1
	for r.next <= last {
		select {
		case last = <-r.end:
		default:
		}
		try, cancel := context.WithTimeout(ctx, answerLimit)
		records := some(try, source, r.next, ahead)
		for _, data := range records {
			if err := r.log.add(data); err != nil {
				cancel()
				return fmt.Errorf("message %d: %w", r.next, err)
			}
			r.next++
		}
		// Older records are read in batches: they may be purged soon.
		ahead = min(2*ahead, mostAhead)
		if len(records) == 0 {
			ahead = 1
			if info, err := source.Info(try); err == nil && info.State.FirstSeq > r.next {
				cancel()
				return fmt.Errorf("message %d was purged before it was read", r.next)
			}
			// The record is not written yet, or no server answers at the moment.
			time.Sleep(5 * time.Millisecond)
		}
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// some reads a limited number of messages from a sequence on, up to the first missing one.
func some(ctx context.Context, source jetstream.Stream, from uint64, most int) [][]byte {
	records := make([][]byte, most)
	var all sync.WaitGroup
	for i := range records {
		all.Go(func() {
			if message, err := source.GetMsg(ctx, from+uint64(i)); err == nil {
				records[i] = message.Data
			}
		})
	}
	all.Wait()
	if end := slices.IndexFunc(records, func(data []byte) bool { return data == nil }); end >= 0 {
		return records[:end]
	}
	return records
}

// bounds returns the first and last sequence of a stream.
func bounds(ctx context.Context, url, stream string) (first, last uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	connection, source, err := open(ctx, url, stream)
	if err != nil {
		return 0, 0, err
	}
	defer connection.Close()
	state := source.CachedInfo().State
	return state.FirstSeq, state.LastSeq, nil
}

// add reads one record.
func (h *history) add(record []byte) error {
	if len(record) < recordHead+recordHash || string(record[:4]) != recordMagic {
		return errors.New("not a record")
	}
	body, sum := record[:len(record)-recordHash], binary.LittleEndian.Uint64(record[len(record)-recordHash:])
	if xxh3.Hash(body) != sum {
		return errors.New("its hash does not match")
	}
	word := func(at int) uint64 { return binary.LittleEndian.Uint64(body[at:]) }
	epoch, writer, previous, base := word(16), word(24), word(40), int64(word(48))
	operations := body[recordHead:]
	stands := base == h.revision && (h.records == 0 || previous == h.hash)
	begins := len(operations) > 0 && operations[0] == opEpoch
	switch {
	case stands && begins && epoch > h.epoch:
		h.epoch, h.writer = epoch, writer
	case stands && !begins && epoch == h.epoch && writer == h.writer:
	case epoch < h.epoch || epoch == h.epoch && writer != h.writer:
		// A late record of a replaced writer: no client got a success for it.
		h.void++
		return nil
	case !begins && epoch == h.epoch && h.displaced < inFlight*h.void:
		// It continues a record that a late one displaced, and is sent again.
		h.displaced++
		return nil
	default:
		return fmt.Errorf("of epoch %d, stands on %x at revision %d; the record before it is %x of epoch %d, at %d",
			epoch, previous, base, h.hash, h.epoch, h.revision)
	}
	h.records++
	h.hash = sum
	for len(operations) > 0 {
		kind, length := operations[0], binary.LittleEndian.Uint32(operations[1:])
		if err := h.operation(kind, operations[5:5+length]); err != nil {
			return err
		}
		operations = operations[5+length:]
	}
	return nil
}

func (h *history) operation(kind byte, data []byte) error {
	number := func(at int) int64 { return int64(binary.LittleEndian.Uint64(data[at:])) }
	switch kind {
	case opChange:
		var pair mvccpb.KeyValue
		if err := proto.Unmarshal(data, &pair); err != nil {
			return err
		}
		return h.change(&pair)
	case opGrant:
		h.push(model.EtcdRequest{Type: model.LeaseGrant, LeaseGrant: &model.LeaseGrantRequest{LeaseID: number(0)}})
	case opRevoke:
		if revision := number(8); revision != 0 {
			h.revision = revision
		}
		h.push(model.EtcdRequest{Type: model.LeaseRevoke, LeaseRevoke: &model.LeaseRevokeRequest{LeaseID: number(0)}})
	case opCompact:
		h.push(model.EtcdRequest{Type: model.Compact, Compact: &model.CompactRequest{Revision: number(0)}})
	case opEpoch:
		h.epochs++
	case opResign:
	default:
		return fmt.Errorf("operation of kind %d: no traffic asks for it", kind)
	}
	return nil
}

// change adds a write to the transaction of its revision.
func (h *history) change(pair *mvccpb.KeyValue) error {
	operation := model.EtcdOperation{Type: model.PutOperation, Put: model.PutOptions{
		Key:     string(pair.Key),
		Value:   model.ToValueOrHash(string(pair.Value)),
		LeaseID: pair.Lease,
	}}
	if pair.Version == 0 {
		operation = model.EtcdOperation{Type: model.DeleteOperation, Delete: model.DeleteOptions{Key: string(pair.Key)}}
	}
	switch pair.ModRevision {
	case h.revision + 1:
		h.revision++
		h.push(model.EtcdRequest{Type: model.Txn, Txn: &model.TxnRequest{}})
	case h.revision:
	default:
		return fmt.Errorf("a write at revision %d behind revision %d", pair.ModRevision, h.revision)
	}
	last := &h.requests[len(h.requests)-1]
	if last.Type != model.Txn {
		return fmt.Errorf("a write at revision %d, which is that of a %s", pair.ModRevision, last.Type)
	}
	last.Txn.OperationsOnSuccess = append(last.Txn.OperationsOnSuccess, operation)
	return nil
}

func (h *history) push(request model.EtcdRequest) {
	h.requests = append(h.requests, request)
	h.revisions = append(h.revisions, h.revision)
}

// withoutOne is the history without one acknowledged write from its middle.
func (h *history) withoutOne(answered map[int]bool) []model.EtcdRequest {
	for at := len(h.requests) / 2; at < len(h.requests); at++ {
		if h.requests[at].Type == model.Txn && answered[at] {
			return slices.Delete(slices.Clone(h.requests), at, at+1)
		}
	}
	panic("no client was told of a write in the second half of the log")
}

// withOneMore is the history with one invented write at its end.
func (h *history) withOneMore() *history {
	put := model.EtcdOperation{Type: model.PutOperation, Put: model.PutOptions{Key: "made up"}}
	txn := model.EtcdRequest{Type: model.Txn, Txn: &model.TxnRequest{OperationsOnSuccess: []model.EtcdOperation{put}}}
	return &history{
		requests:  append(slices.Clone(h.requests), txn),
		revisions: append(slices.Clone(h.revisions), h.revision+1),
	}
}
