package keystore

import (
	"reflect"
	"testing"
	"time"
)

func sampleJob() *Job {
	name := NameOf("main", "alice", "k1")
	j := NewJob(Job{
		Name: name, ID: NewJobID(name), Space: "main", Owner: OwnerDigest("alice"), KeySent: `"k1"`,
		Fingerprint: Fingerprint{Recipe: 1, Sum: DigestOf([]byte("x"))},
		Request:     RequestInfo{Method: "POST", Path: "/pay", MediaType: "application/json", Size: 9},
		Created:     1000, Retention: 24 * time.Hour,
	}, NewAttempt{Token: NewToken(), At: 1000, Lease: 90 * time.Second, Listen: 11 * time.Minute})
	j.WriteID = NewWriteID()
	return j
}

func TestRecordRoundTrip(t *testing.T) {
	j := sampleJob()
	for range 3 {
		rec, err := EncodeRecord(j)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(len(rec))
		got, err := DecodeRecord(j.Name, rec)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, j) {
			t.Fatalf("got %+v, want %+v", got, j)
		}
		s := j.Report(Report{Token: j.Attempts[0].Token, Outcome: OutcomeFinal, At: 2000, Response: &Response{Status: 200, Header: map[string][]string{"A": {"b", "c"}}, Body: []byte("hi"), Size: 2}})
		if s.Next != nil {
			s.Next.WriteID = NewWriteID()
			j = s.Next
		}
	}
}
