package boltstore

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// The buckets of the file. Instants are milliseconds, big-endian, so that
// entries stand in the order of time.
var (
	aboutBucket      = []byte("about")      // what the file is
	jobsBucket       = []byte("jobs")       // name → record and expiry
	expiryBucket     = []byte("expiry")     // expiry, name → nothing
	unresolvedBucket = []byte("unresolved") // lease end, name → nothing
	leaseBucket      = []byte("lease")      // name → lease end of its entry in unresolved
)

// value is what stands under a job's name: its record, and after that its
// expiry, so that the writer can tell without decoding the record whether it is
// still one, and which entry of the expiry bucket belongs to it.
type value []byte

const (
	instantLen = 8
	entryLen   = instantLen + len(keystore.Name{})
)

func encodeValue(job *keystore.Job) (value, error) {
	if job.Unresolved() && !job.Expires.IsZero() {
		return nil, fmt.Errorf("job %s is unresolved and has an expiry: time must not free its key", job.ID)
	}
	record, err := keystore.EncodeRecord(job)
	if err != nil {
		return nil, err
	}
	if len(record) > math.MaxInt32-instantLen {
		return nil, fmt.Errorf("job %s: a record of %d bytes is larger than the file format allows", job.ID, len(record))
	}
	return binary.BigEndian.AppendUint64(record, uint64(job.Expires)), nil
}

func (v value) record() []byte { return v[:max(0, len(v)-instantLen)] }

// expires returns zero for never.
func (v value) expires() keystore.Time {
	if len(v) < instantLen {
		return 0
	}
	return instant(v[len(v)-instantLen:]) & math.MaxInt64
}

func past(expires, now keystore.Time) bool { return expires != 0 && expires <= now }

// lookUp returns the value under a name that is a record at this instant, or
// nil. It can be used as long as the transaction.
func (r records) lookUp(name keystore.Name, now keystore.Time) (value, error) {
	v := value(r.jobs.Get(name[:]))
	if v != nil && len(v) < instantLen {
		return nil, fmt.Errorf("%w: record %s has %d bytes", keystore.ErrCorrupt, name, len(v))
	}
	if past(v.expires(), now) {
		return nil, nil
	}
	return v, nil
}

func instant(b []byte) keystore.Time { return keystore.Time(binary.BigEndian.Uint64(b)) }

// entryKey is the key of an entry in a bucket that is ordered by time.
func entryKey(at keystore.Time, name keystore.Name) []byte {
	return append(binary.BigEndian.AppendUint64(make([]byte, 0, entryLen), uint64(at)), name[:]...)
}

func splitEntryKey(key []byte) (at keystore.Time, name keystore.Name) {
	copy(name[:], key[instantLen:])
	return instant(key), name
}
