package boltstore

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// A large record is kept in pieces, in a bucket of their own. Under the job's name
// stands only what the writer needs to know of it. Otherwise every write of a record
// would write its large neighbours again, since they share a page.
//
// Pieces are numbered as they come, so that new ones go to the bucket's end, and those
// of records that expire together lie together. They are written and removed in the
// transactions that write and remove what stands under the name.
const (
	// maxWhole is how large a record can be that stands under the name itself.
	maxWhole = 8 << 10
	// pieceLen is how large a piece is. The library puts two of that size on a leaf,
	// and four on the last one, which is written anew by the next commit.
	pieceLen = (16*4096-16)/2 - 16 - pieceKeyLen

	pieceKeyLen = 8 + 4

	// inPieces is set in the expiry of a value whose record is in pieces. Before it
	// stand the header of the record, the number of its pieces in the bucket, and the
	// length of the record.
	inPieces    = 1 << 63
	inPiecesLen = keystore.RecordHeaderLen + 8 + 8 + instantLen
)

var piecesBucket = []byte("pieces") // number, index → a piece of a record

// records are the buckets that records are in.
type records struct{ jobs, pieces *bbolt.Bucket }

func recordsOf(tx *bbolt.Tx) records {
	return records{jobs: tx.Bucket(jobsBucket), pieces: tx.Bucket(piecesBucket)}
}

// inPieces reports whether the record is in pieces.
func (v value) inPieces() bool {
	return len(v) == inPiecesLen && binary.BigEndian.Uint64(v[len(v)-instantLen:])&inPieces != 0
}

func (v value) number() []byte { return v[keystore.RecordHeaderLen:][:8] }

// size is about how large the whole value is.
func (v value) size() int {
	if v.inPieces() {
		return int(binary.BigEndian.Uint64(v[keystore.RecordHeaderLen+8:]))
	}
	return len(v)
}

// whole returns a copy of the value that outlives the transaction, with all of its
// record; nil of nil.
func (r records) whole(v value) (value, error) {
	if !v.inPieces() {
		return bytes.Clone(v), nil
	}
	// The length is believed only where the pieces have it: it may be damaged.
	have := 0
	cursor := r.pieces.Cursor()
	for key, piece := cursor.Seek(v.number()); bytes.HasPrefix(key, v.number()); key, piece = cursor.Next() {
		have += len(piece)
	}
	if size := v.size(); have != size {
		return nil, fmt.Errorf("%w: its pieces have %d bytes, and should have %d", keystore.ErrCorrupt, have, size)
	}
	whole := make(value, 0, have+instantLen)
	for key, piece := cursor.Seek(v.number()); bytes.HasPrefix(key, v.number()); key, piece = cursor.Next() {
		whole = append(whole, piece...)
	}
	return binary.BigEndian.AppendUint64(whole, uint64(v.expires())), nil
}

// split puts the record of a value into pieces, and returns what is to stand under its
// name instead.
func (b *batch) split(v value) value {
	if string(b.about.Get(formatKey)) != formatPieces {
		b.try(b.about.Put(formatKey, []byte(formatPieces)))
	}
	record := v.record()
	number, err := b.pieces.NextSequence()
	b.try(err)
	left := make(value, 0, inPiecesLen)
	left = append(left, record[:keystore.RecordHeaderLen]...)
	left = binary.BigEndian.AppendUint64(left, number)
	left = binary.BigEndian.AppendUint64(left, uint64(len(record)))
	left = binary.BigEndian.AppendUint64(left, uint64(v.expires())|inPieces)
	for i := uint32(0); len(record) > 0; i++ {
		piece := record[:min(len(record), pieceLen)]
		record = record[len(piece):]
		b.try(b.pieces.Put(binary.BigEndian.AppendUint32(bytes.Clone(left.number()), i), piece))
	}
	return left
}

// removePieces removes those of a value that is about to go.
func (b *batch) removePieces(v value) {
	if !v.inPieces() {
		return
	}
	// Removing while a cursor walks makes it skip, so that it walks first.
	var keys [][]byte
	cursor := b.pieces.Cursor()
	for key, _ := cursor.Seek(v.number()); bytes.HasPrefix(key, v.number()); key, _ = cursor.Next() {
		keys = append(keys, key)
	}
	for _, key := range keys {
		b.try(b.pieces.Delete(key))
	}
}
