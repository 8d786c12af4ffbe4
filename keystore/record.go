package keystore

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"

	"github.com/fxamacker/cbor/v2"
)

// The record as stores keep it is a header of fixed length, which a store can
// compare without understanding the rest, and the job in CBOR:
//
//	format(1) write id(32, hexadecimal) waiter(1) job
const (
	// FormatVersion is the version of the record format that this code writes; it
	// reads those from oldestFormat on. A record of another version is refused,
	// never rewritten. The header is the same in every version.
	FormatVersion = 1
	oldestFormat  = 1

	// WriteIDOffset and WriteIDLen say where in a record its write id stands.
	WriteIDOffset = 1
	WriteIDLen    = 32

	// WaiterOffset says where in a record the byte stands that tells its next
	// writer whether somebody waits for a change: WaiterNone or WaiterSome.
	WaiterOffset = WriteIDOffset + WriteIDLen
	WaiterNone   = '-'
	WaiterSome   = 'w'

	// RecordHeaderLen is how long that header is.
	RecordHeaderLen = WaiterOffset + 1
)

var (
	recordEncoder = must(cbor.EncOptions{}.EncMode())
	recordDecoder = must(cbor.DecOptions{
		DupMapKey:         cbor.DupMapKeyEnforcedAPF,
		ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
		IndefLength:       cbor.IndefLengthForbidden,
		// However many lines an answer's header has, it is written. The library counts
		// what is there before it makes room, so that a record's size is the limit.
		MaxArrayElements: math.MaxInt32,
		MaxMapPairs:      math.MaxInt32,
		// Paths, media types and header values are whatever bytes the peer sent.
		// The encoder takes them, so a decoder that refused them would make a
		// claimed or completed job unreadable for ever.
		UTF8: cbor.UTF8DecodeInvalid,
	}.DecMode())
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// EncodeRecord returns the record of a job, which must have a write id.
func EncodeRecord(j *Job) ([]byte, error) {
	if j.WriteID.IsZero() {
		return nil, fmt.Errorf("encode job %s: it has no write id", j.ID)
	}
	record := append(make([]byte, 0, j.sizeHint()), FormatVersion)
	record = hex.AppendEncode(record, j.WriteID[:])
	return appendJob(append(record, WaiterNone), j), nil
}

// sizeHint is about as many bytes as the job's record has, and rather more than less.
func (j *Job) sizeHint() int {
	size := 256 + len(j.KeySent) + len(j.Request.Path) + j.Result.sizeHint()
	for i := range j.Attempts {
		size += 192 + len(j.Attempts[i].Reason) + j.Attempts[i].Kept.sizeHint()
	}
	return size
}

func (resp *Response) sizeHint() int {
	if resp == nil {
		return 0
	}
	return 96 + 64*len(resp.Header) + len(resp.Body)
}

// RecordWriteID returns the write id of a record without decoding the rest.
func RecordWriteID(record []byte) (WriteID, error) {
	var id WriteID
	if len(record) < RecordHeaderLen || record[0] < oldestFormat || record[0] > FormatVersion {
		return id, fmt.Errorf("%w: its header is not one of the formats %d to %d", ErrCorrupt, oldestFormat, FormatVersion)
	}
	digits := record[WriteIDOffset:WaiterOffset]
	if _, err := hex.Decode(id[:], digits); err != nil {
		return id, fmt.Errorf("%w: its write id: %w", ErrCorrupt, err)
	}
	// Stores compare the digits as they stand. In another spelling they would never be
	// the ones expected, and whoever reads, decides and writes would do so for ever.
	var room [WriteIDLen]byte
	if !bytes.Equal(hex.AppendEncode(room[:0], id[:]), digits) {
		return WriteID{}, fmt.Errorf("%w: its write id is not spelled as this code does it", ErrCorrupt)
	}
	return id, nil
}

// DecodeRecord returns the job in the record that was found under this name.
func DecodeRecord(name Name, record []byte) (*Job, error) {
	id, err := RecordWriteID(record)
	if err != nil {
		return nil, err
	}
	j, err := decodeJob(record[RecordHeaderLen:])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	j.WriteID = id
	j.unpack()
	if err := j.validate(name); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return j, nil
}

func decodeJob(b []byte) (*Job, error) {
	if j := readJob(b); j != nil {
		return j, nil
	}
	// It is not as a codec writes it, but the library may accept it all the same.
	j := new(Job)
	return j, recordDecoder.Unmarshal(b, j)
}

// validate reports what no record that this code wrote can have.
func (j *Job) validate(name Name) error {
	idName, err := NameOfJobID(j.ID)
	switch {
	case j.Name != name:
		return errors.New("it belongs under another name")
	case err != nil:
		return err
	case idName != name:
		return errors.New("its job id belongs to another name")
	case j.WriteID.IsZero():
		return errors.New("its write id is zero")
	case len(j.Attempts) == 0:
		return errors.New("it has no attempt")
	case j.Retention <= 0:
		return errors.New("its retention is not positive")
	case j.CompletedBy.IsZero() != (j.Result == nil):
		return errors.New("its result slot is half taken")
	case j.Unresolved() != j.Expires.IsZero():
		return errors.New("its expiry does not fit its state")
	}
	completed := false
	for i := range j.Attempts {
		a := &j.Attempts[i]
		if a.State < AttemptStarting || a.State > AttemptDiscarded {
			return fmt.Errorf("attempt %d has no valid state", a.Number)
		}
		if a.Kept != nil && a.State != AttemptUnknown {
			return fmt.Errorf("attempt %d is %s and keeps an answer", a.Number, a.State)
		}
		if a.Token.IsZero() {
			return fmt.Errorf("attempt %d has no token", a.Number)
		}
		if won := a.Token == j.CompletedBy && !j.CompletedBy.IsZero(); won != (a.State == AttemptSucceeded) {
			return fmt.Errorf("attempt %d is %s, which does not fit the result slot", a.Number, a.State)
		} else if won {
			completed = true
		}
	}
	if !completed && !j.CompletedBy.IsZero() {
		return errors.New("the attempt in its result slot is not listed")
	}
	return nil
}
