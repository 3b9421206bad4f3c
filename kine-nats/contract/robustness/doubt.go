package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
)

// A request without an answer may have taken effect at any later time, or never, and the checks try all of that: forty
// deletes that were given up while a fault lasted are 2^40 states. The log knows what became of them. etcd's own checks ask
// theirs about writes of values that one client wrote; what is here asks ours about everything.

// settled is what clients saw, with what became of the requests that they got no answer to.
type settled struct {
	reports []report.ClientReport
	// What the log holds does not tell these apart: they stay in doubt.
	doubtful int
	// The entries of the log that a client was told of.
	answered map[int]bool
}

// settle leaves out what the log does not hold, and says when the rest took effect. It is an error if the log holds what
// nobody asked for, or had it before it was asked for.
func (h *history) settle(reports []report.ClientReport) (settled, error) {
	s := settled{answered: map[int]bool{}}
	var answers, failed []porcupine.Operation
	for _, r := range reports {
		for _, o := range r.KeyValue {
			if o.Output.(model.MaybeEtcdResponse).Error == "" {
				answers = append(answers, o)
			} else {
				failed = append(failed, o)
			}
		}
	}
	for i := range h.requests {
		s.answered[i] = slices.ContainsFunc(answers, func(o porcupine.Operation) bool { return h.answers(i, o) })
	}
	// Which entries each may have led to, and how many may have led to each entry.
	entries, askers := make([][]int, len(failed)), map[int]int{}
	for f, o := range failed {
		known := revisionBefore(answers, o.Call)
		for i := range h.requests {
			if !s.answered[i] && h.firstSeen(i) > known && h.serves(i, o.Input.(model.EtcdRequest)) {
				entries[f] = append(entries[f], i)
				askers[i]++
			}
		}
	}
	for i, request := range h.requests {
		// Who gets no answer does not learn the lease, and nobody uses it.
		if request.Type != model.LeaseGrant && !s.answered[i] && askers[i] == 0 {
			return s, fmt.Errorf("the log holds a %s at revision %d that nobody asked for: %+v", request.Type, h.revisions[i], request)
		}
	}
	f := 0
	for _, r := range reports {
		var operations []porcupine.Operation
		for _, o := range r.KeyValue {
			if o.Output.(model.MaybeEtcdResponse).Error == "" {
				operations = append(operations, o)
				continue
			}
			found := entries[f]
			f++
			switch {
			case len(found) == 0:
				continue
			case len(found) == 1 && askers[found[0]] == 1:
				i := found[0]
				if o.Return = returnBefore(answers, h.firstSeen(i)); o.Return <= o.Call {
					return s, fmt.Errorf("an answer showed revision %d before this was sent, which made it: %+v", h.revisions[i], o.Input)
				}
				output := model.MaybeEtcdResponse{Persisted: true}
				// The model does not know an answer's revision of a compaction.
				if h.requests[i].Type != model.Compact {
					output.PersistedRevision = h.revisions[i]
				}
				o.Output = output
			default:
				s.doubtful++
			}
			operations = append(operations, o)
		}
		r.KeyValue = operations
		s.reports = append(s.reports, r)
	}
	return s, nil
}

// serves says whether an entry is what a request asks for.
func (h *history) serves(entry int, request model.EtcdRequest) bool {
	stored := h.requests[entry]
	if stored.Type != request.Type {
		return false
	}
	switch request.Type {
	case model.LeaseGrant:
		return *stored.LeaseGrant == *request.LeaseGrant
	case model.LeaseRevoke:
		return *stored.LeaseRevoke == *request.LeaseRevoke
	case model.Compact:
		return *stored.Compact == *request.Compact
	case model.Txn:
		// Deletes of keys that there are not leave nothing.
		wanted, done := request.Txn.OperationsOnSuccess, stored.Txn.OperationsOnSuccess
		return !slices.ContainsFunc(done, func(o model.EtcdOperation) bool { return !slices.Contains(wanted, o) }) &&
			!slices.ContainsFunc(wanted, func(o model.EtcdOperation) bool {
				return o.Type == model.PutOperation && !slices.Contains(done, o)
			})
	}
	return false
}

// answers says whether an operation's answer is of an entry.
func (h *history) answers(entry int, o porcupine.Operation) bool {
	response := o.Output.(model.MaybeEtcdResponse)
	if response.ClientError != "" || !h.serves(entry, o.Input.(model.EtcdRequest)) {
		return false
	}
	if response.Txn == nil {
		return true
	}
	return response.Revision == h.revisions[entry] && !response.Txn.Failure
}

// firstSeen is the lowest revision in a response that shows the effect of an entry.
func (h *history) firstSeen(entry int) int64 {
	before := int64(1)
	if entry > 0 {
		before = h.revisions[entry-1]
	}
	if before == h.revisions[entry] {
		// The request created no revision of its own.
		return before + 1
	}
	return h.revisions[entry]
}

// revisionBefore is the highest revision that any response had shown by a time.
func revisionBefore(answers []porcupine.Operation, time int64) (highest int64) {
	for _, o := range answers {
		if o.Return < time {
			highest = max(highest, o.Output.(model.MaybeEtcdResponse).Revision)
		}
	}
	return highest
}

// returnBefore is the time of the first response that shows a revision.
func returnBefore(answers []porcupine.Operation, revision int64) int64 {
	first := int64(math.MaxInt64)
	for _, o := range answers {
		if o.Output.(model.MaybeEtcdResponse).Revision >= revision {
			first = min(first, o.Return)
		}
	}
	return first
}
