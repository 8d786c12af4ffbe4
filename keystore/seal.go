package keystore

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// ErrSealed says that something encrypted can't be opened: nobody here has its
// key, or it is not what was sealed for this job.
var ErrSealed = errors.New("encrypted record can't be read")

// SealKey is a key that records are encrypted with, and the id by which they
// name it.
type SealKey struct {
	ID     string
	Secret Secret
}

// Keyring encrypts with its first key and decrypts with all of them. A nil one
// encrypts nothing, and opens only what is not encrypted.
//
// What is sealed is bound to its job, by a key that is derived for that job alone
// and by its additional data: it does not open for another one.
type Keyring struct {
	keys []SealKey
}

// NewKeyring returns a keyring with these keys, or nil without any.
func NewKeyring(keys ...SealKey) (*Keyring, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	for i, k := range keys {
		for _, other := range keys[:i] {
			switch {
			case k.ID == other.ID:
				return nil, fmt.Errorf("two keys have the id %s; give each its own", k.ID)
			case k.Secret == other.Secret:
				return nil, fmt.Errorf("the keys %s and %s are one secret; keep one of them", other.ID, k.ID)
			}
		}
	}
	return &Keyring{keys}, nil
}

// Format implements fmt.Formatter: the secrets never show.
func (k *Keyring) Format(f fmt.State, _ rune) {
	if k == nil {
		_, _ = io.WriteString(f, "(no keyring)")
		return
	}
	_, _ = fmt.Fprintf(f, "(keyring of %d)", len(k.keys))
}

// Equal reports whether both have the same keys in the same order.
func (k *Keyring) Equal(other *Keyring) bool {
	if k == nil || other == nil {
		return k == other
	}
	if len(k.keys) != len(other.keys) {
		return false
	}
	for i := range k.keys {
		if k.keys[i] != other.keys[i] {
			return false
		}
	}
	return true
}

// SealJob returns a job's identity with its key sealed.
func (k *Keyring) SealJob(identity Job) Job {
	if k == nil {
		return identity
	}
	first := k.keys[0]
	identity.KeySealed = &Sealed{first.ID, first.of(identity.ID).seal(purposeKey, []byte(identity.KeySent))}
	identity.KeySent = ""
	return identity
}

// OpenJob returns the job with its key open. Such a job is not to be stored.
func (k *Keyring) OpenJob(j *Job) (*Job, error) {
	if j.KeySealed == nil {
		return j, nil
	}
	jk, err := k.keyOf(j.ID, j.KeySealed.By)
	if err != nil {
		return nil, err
	}
	sent, err := jk.open(purposeKey, j.KeySealed.Box)
	if err != nil {
		return nil, err
	}
	opened := *j
	opened.KeySent, opened.KeySealed = string(sent), nil
	return &opened, nil
}

// SealResponse returns a response as the result of the job with this id. What
// operators are shown of it stays open.
func (k *Keyring) SealResponse(jobID string, r *Response) *Response {
	if k == nil {
		return r
	}
	first := k.keys[0]
	jk := first.of(jobID)
	whole := must(recordEncoder.Marshal(r)) // there is nothing in it that can't be encoded
	return &Response{
		Status: r.Status, Size: r.Size, NotKept: r.NotKept, Answered: r.Answered,
		Body: jk.seal(purposeResponse, whole), SealedBy: first.ID, Sum: jk.sum(DigestOf(r.Body)),
	}
}

// OpenResponse returns a job's result open. One whose body was not kept is not
// there to be opened.
func (k *Keyring) OpenResponse(j *Job) (*Response, error) {
	r := j.Result
	if r.SealedBy == "" {
		return r, nil
	}
	jk, err := k.keyOf(j.ID, r.SealedBy)
	if err != nil {
		return nil, err
	}
	whole, err := jk.open(purposeResponse, r.Body)
	if err != nil {
		return nil, err
	}
	opened := new(Response)
	if err := recordDecoder.Unmarshal(whole, opened); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSealed, err)
	}
	if opened.Status != r.Status || opened.Size != r.Size || opened.NotKept != r.NotKept || opened.Answered != r.Answered {
		return nil, fmt.Errorf("%w: what is not encrypted of it was changed", ErrSealed)
	}
	return opened, nil
}

// whole reports whether the response's body is here, in clear or sealed.
func (resp *Response) whole() bool {
	if resp.SealedBy != "" {
		return !resp.NotKept && len(resp.Body) > 0
	}
	return !resp.NotKept && int64(len(resp.Body)) == resp.Size
}

// keyOf returns the key with this id for a job.
func (k *Keyring) keyOf(jobID, id string) (jobKey, error) {
	if k != nil {
		for i := range k.keys {
			if k.keys[i].ID == id {
				return k.keys[i].of(jobID), nil
			}
		}
	}
	return jobKey{}, fmt.Errorf("%w: it was encrypted with the key %q, which is not known here; add encrypt_with with that id and its secret", ErrSealed, id)
}

// What is sealed, so that one can't be put in the place of the other.
const (
	purposeKey      = "key"
	purposeResponse = "response"
)

// jobKey is a key derived for one job. As no key is used for more than one job,
// random nonces don't run short however many jobs there are.
type jobKey struct {
	id, job string
	box     cipher.AEAD
	mac     []byte
}

// of derives the key for a job, whose id has its name and so its space, owner and
// key in it.
func (k SealKey) of(jobID string) jobKey {
	const half = 32
	derived := must(hkdf.Key(sha256.New, k.Secret[:], nil, "caddy-idempotency record 1 "+jobID, 2*half))
	return jobKey{
		id: k.ID, job: jobID,
		box: must(cipher.NewGCMWithRandomNonce(must(aes.NewCipher(derived[:half])))),
		mac: derived[half:],
	}
}

func (jk jobKey) seal(purpose string, plain []byte) []byte {
	return jk.box.Seal(nil, nil, plain, jk.about(purpose)) //nolint:gosec // the nonce is drawn inside
}

func (jk jobKey) open(purpose string, sealed []byte) ([]byte, error) {
	if len(sealed) < jk.box.Overhead() {
		return nil, fmt.Errorf("%w: the %s is too short to have been encrypted", ErrSealed, purpose)
	}
	plain, err := jk.box.Open(nil, nil, sealed, jk.about(purpose))
	if err != nil {
		return nil, fmt.Errorf("%w: the %s does not open with the key %q: either encrypt_with has another secret for that id, or the record was changed, or copied from another job's",
			ErrSealed, purpose, jk.id)
	}
	return plain, nil
}

// about is the additional data: what a box belongs to.
func (jk jobKey) about(purpose string) (data []byte) {
	for _, part := range []string{purpose, jk.id, jk.job} {
		data = binary.BigEndian.AppendUint64(data, uint64(len(part)))
		data = append(data, part...)
	}
	return data
}

func (jk jobKey) sum(plain Digest) (sum Digest) {
	h := hmac.New(sha256.New, jk.mac)
	h.Write(plain[:])
	h.Sum(sum[:0])
	return sum
}

// NewSecret draws a secret.
func NewSecret() (s Secret) {
	_, _ = rand.Read(s[:])
	return s
}
