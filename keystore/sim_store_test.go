package keystore

import (
	"fmt"
	"reflect"
)

// simStore keeps records as the contract of [Store] promises, and nothing more:
// create, swap, expiry by a clock that only the test moves. It holds encoded
// records, so that a job which somebody changed after writing it shows.
type simStore struct {
	now     Time
	records map[Name][]byte
	// history holds every record that ever stood under a name, for rollbacks.
	history map[Name][][]byte
	// applied, if set, is told of every change, with what stood there before (nil
	// for none) and what stands there now (nil: dropped).
	applied func(old, next *Job)
	// gone, if set, is told of a record that has expired.
	gone func(*Job)
	// broken is the first record that the codec did not give back as it was.
	broken error
}

// write is one logical write, which can be sent many times.
type write struct {
	create   bool
	expected WriteID
	job      *Job
}

func newSimStore() *simStore {
	return &simStore{records: map[Name][]byte{}, history: map[Name][][]byte{}}
}

func (s *simStore) decode(n Name, rec []byte) *Job {
	j, err := DecodeRecord(n, rec)
	if err != nil && s.broken == nil {
		s.broken = err
	}
	return j
}

// get returns the record under a name, and whether there is one.
func (s *simStore) get(n Name) (*Job, bool) {
	rec, ok := s.records[n]
	if !ok {
		return nil, false
	}
	j := s.decode(n, rec)
	if j != nil && !j.Expires.IsZero() && j.Expires <= s.now {
		s.drop(n)
		if s.gone != nil {
			s.gone(j)
		}
		return nil, false
	}
	return j, j != nil
}

// apply executes a write as a store does that got it: done, or the record that
// is there instead.
func (s *simStore) apply(w write) (present *Job, done bool) {
	old, there := s.get(w.job.Name)
	switch {
	case there && old.WriteID == w.job.WriteID:
		return nil, true // an earlier send of this write
	case w.create && there, !w.create && (!there || old.WriteID != w.expected):
		return old, false
	}
	rec, err := EncodeRecord(w.job)
	if err != nil {
		s.broken = err
		return nil, true
	}
	kept := s.decode(w.job.Name, rec)
	if kept == nil {
		return nil, true // broken, which ends the run
	}
	if s.broken == nil && !reflect.DeepEqual(kept, w.job) {
		s.broken = fmt.Errorf("the codec changed the record: %+v became %+v", w.job, kept)
	}
	if !kept.Expires.IsZero() && kept.Expires <= s.now {
		s.drop(kept.Name)
		kept = nil
	} else {
		s.records[kept.Name] = rec
		s.history[kept.Name] = append(s.history[kept.Name], rec)
	}
	if s.applied != nil {
		s.applied(old, kept)
	}
	return nil, true
}

// drop removes a record, and with it what a rollback could go back to.
func (s *simStore) drop(n Name) {
	delete(s.records, n)
	delete(s.history, n)
}
