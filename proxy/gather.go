package proxy

import (
	"io"
	"sync"
)

const (
	// gatheredAlone is how much of a body is gathered in memory of its own, which
	// grows with what has come: many of them may come slowly at one time.
	gatheredAlone = 8 << 10
	pieceSize     = 32 << 10
)

type piece [pieceSize]byte

var pieces = sync.Pool{New: func() any { return new(piece) }}

// gathered is a body of which nobody knows how large it will be, as it comes. Past
// its beginning it is gathered in pieces, which are used again, so that it is copied
// once and not each time that it has outgrown its memory. Nobody else ever has them:
// what is taken is a copy.
type gathered struct {
	alone []byte
	rest  []*piece
	size  int // of all
}

// room returns memory for what comes next, up to so much.
func (g *gathered) room(wanted int) []byte {
	if g.size < gatheredAlone {
		if g.size == cap(g.alone) {
			larger := make([]byte, g.size, min(gatheredAlone, max(2*g.size, g.size+wanted)))
			copy(larger, g.alone)
			g.alone = larger
		}
		return g.alone[g.size:min(g.size+wanted, cap(g.alone))]
	}
	if len(g.rest)*pieceSize == g.size-gatheredAlone {
		g.rest = append(g.rest, pieces.Get().(*piece))
	}
	used := (g.size - gatheredAlone) % pieceSize
	return g.rest[len(g.rest)-1][used:min(used+wanted, pieceSize)]
}

// came says that so much has come into the room.
func (g *gathered) came(n int) {
	if g.size < gatheredAlone {
		g.alone = g.alone[:g.size+n]
	}
	g.size += n
}

// Write implements io.Writer.
func (g *gathered) Write(p []byte) (int, error) {
	for left := p; len(left) > 0; {
		n := copy(g.room(len(left)), left)
		g.came(n)
		left = left[n:]
	}
	return len(p), nil
}

// ReadFrom implements io.ReaderFrom.
func (g *gathered) ReadFrom(r io.Reader) (int64, error) {
	before := g.size
	for {
		n, err := r.Read(g.room(max(512, g.size)))
		g.came(n)
		switch {
		case err == io.EOF: // a wrapped one is no proper end
			return int64(g.size - before), nil
		case err != nil:
			return int64(g.size - before), err
		}
	}
}

// each calls f with the parts of the body, until that fails.
func (g *gathered) each(f func(part []byte) error) error {
	left := g.size - len(g.alone)
	err := f(g.alone)
	for i := 0; i < len(g.rest) && err == nil; i++ {
		part := g.rest[i][:min(left, pieceSize)]
		left -= len(part)
		err = f(part)
	}
	return err
}

// take returns the whole body. Nothing is gathered any more after that.
func (g *gathered) take() []byte {
	whole := g.alone
	if len(g.rest) > 0 {
		whole = make([]byte, 0, g.size)
		_ = g.each(func(part []byte) error {
			whole = append(whole, part...)
			return nil
		})
	}
	g.drop()
	return whole
}

// drop forgets the body, and lets others have the pieces.
func (g *gathered) drop() {
	for _, p := range g.rest {
		pieces.Put(p)
	}
	*g = gathered{}
}

var (
	_ io.Writer     = (*gathered)(nil)
	_ io.ReaderFrom = (*gathered)(nil)
)
