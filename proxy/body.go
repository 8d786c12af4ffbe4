package proxy

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

var errBodyTooLarge = errors.New("request body is too large")

// ErrBodyUnfinished is in the chain of the error that [Route.Serve] returns for a
// request whose body the client never finished. Nothing was claimed or sent.
var ErrBodyUnfinished = errors.New("request body was not finished")

// clientReader tells the errors of the client from those of the machine.
type clientReader struct{ io.Reader }

func (c clientReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // a wrapped one is no proper end
		err = fmt.Errorf("%w: %w", ErrBodyUnfinished, err)
	}
	return n, err
}

// requestBody is a request's body, read whole before anything is claimed: in
// memory, or past a threshold in a temporary file. Each attempt reads it from
// the start.
type requestBody struct {
	size int64
	sum  keystore.Digest

	mem  []byte
	file *os.File

	mu    sync.Mutex
	users int
}

// readBody reads a body of at most limit bytes. The first user is the caller,
// who must release it.
func readBody(r io.Reader, declared, buffer, limit int64) (*requestBody, error) {
	b := &requestBody{users: 1}
	if r == nil || r == http.NoBody {
		b.sum = keystore.DigestOf(nil)
		return b, nil
	}
	if declared > limit {
		return nil, errBodyTooLarge
	}
	if 0 < declared && declared <= min(buffer-1, gatheredAlone) {
		if err := b.readSmall(r, declared); err != nil {
			return nil, err
		}
		return b, nil
	}
	h := sha256.New()
	var mem gathered
	defer mem.drop()
	if declared > 0 {
		// No more than what costs the sender something too, who may only have said so.
		mem.alone = make([]byte, 0, min(declared, gatheredAlone))
	}
	src := io.TeeReader(io.LimitReader(clientReader{r}, limit+1), h)
	n, err := io.Copy(&mem, io.LimitReader(src, buffer))
	if err == nil && n == buffer {
		err = b.spill(&mem, src)
	}
	if err != nil {
		b.release()
		return nil, fmt.Errorf("buffer request body: %w", err)
	}
	if b.file == nil {
		b.mem, b.size = mem.take(), n
	}
	switch {
	case b.size > limit:
		err = errBodyTooLarge
	case declared >= 0 && b.size != declared:
		err = fmt.Errorf("%w: %d of %d bytes came", ErrBodyUnfinished, b.size, declared)
	}
	if err != nil {
		b.release()
		return nil, err
	}
	h.Sum(b.sum[:0])
	return b, nil
}

// readSmall reads a body of which it is said that it is small, in one piece. It has
// to be seen that this was all, and the trailers come with the end: most readers tell
// of it together with the last bytes if there is room for more.
func (b *requestBody) readSmall(r io.Reader, declared int64) error {
	room := make([]byte, declared+1)
	n := int64(0)
	for n <= declared {
		more, err := r.Read(room[n:])
		n += int64(more)
		if err == io.EOF || err == io.ErrUnexpectedEOF && n < declared { //nolint:errorlint // a wrapped one is no proper end
			break
		}
		if err != nil {
			return fmt.Errorf("buffer request body: %w: %w", ErrBodyUnfinished, err)
		}
	}
	switch {
	case n < declared:
		return fmt.Errorf("%w: %d of %d bytes came", ErrBodyUnfinished, n, declared)
	case n > declared:
		return fmt.Errorf("%w: more than %d bytes came", ErrBodyUnfinished, declared)
	}
	b.mem = room[:declared:declared]
	b.size, b.sum = declared, keystore.DigestOf(b.mem)
	return nil
}

// spill moves what was read to a temporary file and reads the rest into it, if
// there is a rest.
func (b *requestBody) spill(mem *gathered, rest io.Reader) error {
	var probe [1]byte
	n, err := io.ReadFull(rest, probe[:])
	if err == io.EOF { //nolint:errorlint // a wrapped one is no proper end
		return nil
	}
	if err != nil {
		return err
	}
	_, _ = mem.Write(probe[:n])
	file, err := os.CreateTemp("", "idempotency-body-*")
	if err != nil {
		return err
	}
	b.file = file
	// Unlinked at once, no ending of the process leaves it behind. Where the
	// system does not allow that, release removes it.
	_ = os.Remove(file.Name())
	if err := mem.each(func(part []byte) error {
		_, err := file.Write(part)
		return err
	}); err != nil {
		return err
	}
	more, err := io.Copy(file, rest)
	b.size = int64(mem.size) + more
	return err
}

// open returns a reader of the whole body for one attempt. It holds the body
// until it is closed.
func (b *requestBody) open() io.ReadCloser {
	if b.size == 0 {
		return http.NoBody
	}
	b.retain()
	r := &bodyReader{body: b}
	if b.file != nil {
		r.Reader = io.NewSectionReader(b.file, 0, b.size)
	} else {
		r.Reader = bytes.NewReader(b.mem)
	}
	return r
}

func (b *requestBody) retain() {
	b.mu.Lock()
	b.users++
	b.mu.Unlock()
}

func (b *requestBody) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.users--
	if b.users == 0 && b.file != nil {
		b.file.Close()
		_ = os.Remove(b.file.Name())
		b.file = nil
	}
}

// bodyReader hides that it could seek: a transport that can rewind a body may
// send it again by itself.
type bodyReader struct {
	io.Reader
	body *requestBody
	once sync.Once
	read *atomic.Bool // is told that somebody has read; may be nil
}

func (r *bodyReader) Read(p []byte) (int, error) {
	if r.read != nil {
		r.read.Store(true)
	}
	return r.Reader.Read(p)
}

func (r *bodyReader) Close() error {
	r.once.Do(r.body.release)
	return nil
}
