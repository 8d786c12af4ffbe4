package boltstore

import (
	"context"
	"encoding/hex"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// maxScanBytes bounds what one page of a scan holds: bodies are in the records.
const maxScanBytes = 8 << 20

// Scan implements [keystore.Store]. Jobs come in the order of their names, each
// once, with their bodies. A limit that is not positive stands for 100, and a page
// of large jobs holds less. An unreadable record is logged and left out.
func (s *Store) Scan(ctx context.Context, cursor string, limit int) (page []*keystore.Job, next string, err error) {
	if limit <= 0 {
		limit = defaultPage
	}
	after, err := hex.DecodeString(cursor)
	if err != nil || (len(after) != 0 && len(after) != len(keystore.Name{})) {
		return nil, "", fmt.Errorf("scan %s: %q is not a cursor of this store", s.path, cursor)
	}
	now := s.now()
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		records := recordsOf(tx)
		cursor := records.jobs.Cursor()
		key, v := cursor.Seek(after)
		if len(after) > 0 && string(key) == string(after) {
			key, v = cursor.Next()
		}
		var last []byte
		bytes := 0
		for scanned := 0; key != nil; key, v = cursor.Next() {
			if len(page) == limit || scanned == maxScan || (len(page) > 0 && bytes+value(v).size() > maxScanBytes) {
				next = hex.EncodeToString(last)
				return nil
			}
			scanned++
			last = append(last[:0], key...)
			var name keystore.Name
			if len(key) != len(name) {
				s.log.Error("a job can't be read: its name is none", "file", s.path, "record", hex.EncodeToString(key))
				continue
			}
			copy(name[:], key)
			job, err := records.decodeAt(name, now)
			switch {
			case err != nil:
				s.log.Error("a job can't be read", "file", s.path, "record", name, "error", err)
			case job != nil:
				page = append(page, job)
				bytes += value(v).size()
			}
		}
		return nil
	})
	if err != nil {
		return nil, "", fmt.Errorf("scan %s: %w", s.path, err)
	}
	return page, next, nil
}
