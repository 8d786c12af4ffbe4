package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// The layout of the library's pages. A page begins with its number, its flags, how many
// elements it has, and how many pages more belong to it.
const (
	pageHeaderLen = 16
	elementLen    = 16
	branchPage    = 0x01
	leafPage      = 0x02
	freelistPage  = 0x10
	bucketFlag    = 0x01
	bucketLen     = 16 // root, sequence
)

// walk goes through the pages of a file as the library does when it looks for free ones,
// and returns what would end the process there. It reads the file and not its mapping,
// so that pages that can't be read are errors, too.
type walk struct {
	file io.ReaderAt
	size int64  // of a page
	end  uint64 // as many pages there are
	seen []bool
	bufs [][]byte // by depth
}

// walkPages walks through the pages of a file whose last transaction is the given one;
// where its free pages are listed only through that list.
func walkPages(file io.ReaderAt, pageSize int, txid int, listed bool) error {
	return (&walk{file: file, size: int64(pageSize)}).all(txid, listed)
}

func (w *walk) all(txid int, listed bool) error {
	meta := make([]byte, pageHeaderLen+64)
	if _, err := w.file.ReadAt(meta, int64(txid%2)*w.size); err != nil {
		return err
	}
	field := func(n int) uint64 { return binary.NativeEndian.Uint64(meta[pageHeaderLen+16+8*n:]) }
	root, freelist := field(0), field(2)
	w.end = field(3)
	w.seen = make([]bool, w.end)
	if freelist != math.MaxUint64 {
		if err := w.freelist(freelist); err != nil || listed {
			return err
		}
	}
	return w.tree(root, 0, nil, nil, true)
}

// page returns a page with all that belongs to it, and its header's fields. It is good
// until the next of that depth is asked for.
func (w *walk) page(id uint64, depth int) (b []byte, flags uint16, count int, err error) {
	var header [pageHeaderLen]byte
	if id < 2 || id >= w.end {
		return nil, 0, 0, fmt.Errorf("%w: page %d is none of %d", ErrForeign, id, w.end)
	}
	if err := w.read(header[:], id); err != nil {
		return nil, 0, 0, err
	}
	flags, count = binary.NativeEndian.Uint16(header[8:]), int(binary.NativeEndian.Uint16(header[10:]))
	more := uint64(binary.NativeEndian.Uint32(header[12:]))
	if own := binary.NativeEndian.Uint64(header[:]); own != id || more >= w.end-id {
		return nil, 0, 0, fmt.Errorf("%w: page %d says that it is page %d and has %d more", ErrForeign, id, own, more)
	}
	for i := id; i <= id+more; i++ {
		if w.seen[i] {
			return nil, 0, 0, fmt.Errorf("%w: page %d is used twice", ErrForeign, i)
		}
		w.seen[i] = true
	}
	for len(w.bufs) <= depth {
		w.bufs = append(w.bufs, nil)
	}
	length := int(more+1) * int(w.size)
	if cap(w.bufs[depth]) < length {
		w.bufs[depth] = make([]byte, length)
	}
	b = w.bufs[depth][:length]
	return b, flags, count, w.read(b, id)
}

func (w *walk) read(b []byte, id uint64) error {
	_, err := w.file.ReadAt(b, int64(id)*w.size)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: it was cut short before the end of page %d", ErrForeign, id)
	}
	return err
}

// tree walks through the pages below one. Their keys have to be in order, not before
// from, and before to.
func (w *walk) tree(id uint64, depth int, from, to []byte, buckets bool) error {
	b, flags, count, err := w.page(id, depth)
	if err != nil {
		return err
	}
	if flags != branchPage && flags != leafPage || pageHeaderLen+count*elementLen > len(b) {
		return fmt.Errorf("%w: page %d has flags %#x and %d elements", ErrForeign, id, flags, count)
	}
	element := func(i int) (key, rest []byte, ok bool) {
		at := pageHeaderLen + i*elementLen
		e := b[at:][:elementLen]
		pos, klen, vlen := binary.NativeEndian.Uint32(e), binary.NativeEndian.Uint32(e[4:]), uint32(0)
		if flags == leafPage {
			pos, klen, vlen = binary.NativeEndian.Uint32(e[4:]), binary.NativeEndian.Uint32(e[8:]), binary.NativeEndian.Uint32(e[12:])
		}
		start, end := int64(at)+int64(pos), int64(at)+int64(pos)+int64(klen)+int64(vlen)
		if end > int64(len(b)) {
			return nil, nil, false
		}
		return b[start:][:klen], b[start+int64(klen) : end], true
	}
	before := from
	for i := range count {
		key, value, ok := element(i)
		if !ok {
			return fmt.Errorf("%w: element %d of page %d is not in it", ErrForeign, i, id)
		}
		if order := bytes.Compare(before, key); order > 0 || (order == 0 && i > 0) || (to != nil && bytes.Compare(key, to) >= 0) {
			return fmt.Errorf("%w: element %d of page %d is out of order", ErrForeign, i, id)
		}
		before = key
		at := b[pageHeaderLen+i*elementLen:]
		switch isBucket := binary.NativeEndian.Uint32(at)&bucketFlag != 0; {
		case flags == branchPage:
			until := to
			if i+1 < count {
				if until, _, ok = element(i + 1); !ok {
					return fmt.Errorf("%w: element %d of page %d is not in it", ErrForeign, i+1, id)
				}
			}
			if err := w.tree(binary.NativeEndian.Uint64(at[8:]), depth+1, key, until, buckets); err != nil {
				return err
			}
		case isBucket != buckets || isBucket && len(value) < bucketLen:
			return fmt.Errorf("%w: element %d of page %d is a bucket, or should be one", ErrForeign, i, id)
		case isBucket:
			if root := binary.NativeEndian.Uint64(value); root != 0 { // otherwise its page is in the value
				if err := w.tree(root, depth+1, nil, nil, false); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// freelist looks at the list of free pages.
func (w *walk) freelist(id uint64) error {
	b, flags, count, err := w.page(id, 0)
	if err != nil {
		return err
	}
	ids := b[pageHeaderLen:]
	if count == math.MaxUint16 { // then the first is the count
		count, ids = int(binary.NativeEndian.Uint64(ids)), ids[8:]
	}
	if flags != freelistPage || count < 0 || count > len(ids)/8 {
		return fmt.Errorf("%w: page %d has flags %#x and %d free pages", ErrForeign, id, flags, count)
	}
	for i := range count {
		free := binary.NativeEndian.Uint64(ids[8*i:])
		if free < 2 || free >= w.end || w.seen[free] {
			return fmt.Errorf("%w: page %d, said to be free, is none of %d, or in use", ErrForeign, free, w.end)
		}
		w.seen[free] = true
	}
	return nil
}
