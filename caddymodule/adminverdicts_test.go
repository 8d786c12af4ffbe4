package caddymodule

import (
	"encoding/json"
	"testing"
	"time"
)

func TestVerdictsAreCounted(t *testing.T) {
	u := newUpstream(t)
	load(t, site(t, consoleSite(u, userOfHeader)))
	ask := func(query string) (v verdictsAnswer) {
		t.Helper()
		a := browse(t, "GET", "/console/_api/verdicts"+query, "", ours...)
		if err := json.Unmarshal([]byte(a.body), &v); err != nil || a.status != 200 {
			t.Fatalf("verdicts: %d %s", a.status, a.body)
		}
		return v
	}
	before := ask("").Totals
	post(t, "/pay", "v")
	post(t, "/pay", "v")
	post(t, "/pay", "")
	makeUnknown(t, "w")
	after := ask("")
	for verdict, want := range map[string]uint64{"executed": 1, "replayed": 1, "bypassed": 1, "outcome_unknown": 1} {
		if got := after.Totals[verdict] - before[verdict]; got != want {
			t.Errorf("%d %s, want %d", got, verdict, want)
		}
	}
	if len(after.Samples) == 0 || after.Since.After(after.Samples[0].At) {
		t.Fatalf("samples %+v since %v", after.Samples, after.Since)
	}
	last := after.Samples[len(after.Samples)-1].At
	for _, s := range ask("?after=" + last.Format(time.RFC3339Nano)).Samples {
		if !s.At.After(last) {
			t.Errorf("a sample of %v, not after %v", s.At, last)
		}
	}
	if a := browse(t, "GET", "/console/_api/verdicts?after=yesterday", "", ours...); a.status != 400 {
		t.Errorf("got %d %s", a.status, a.body)
	}
}

// The last quarter of an hour is kept, and no more, however many configurations count.
func TestSamples(t *testing.T) {
	t.Parallel()
	o, s, begin := newObserver(), new(sampler), time.Now()
	for i := range 2 * maxSamples {
		o.Request("executed")
		s.take(begin.Add(time.Duration(i)*sampleEvery), o)
		s.take(begin.Add(time.Duration(i)*sampleEvery+time.Second), o)
	}
	kept := s.after(time.Time{})
	if len(kept) != maxSamples || kept[0].Totals["executed"] != maxSamples+1 || kept[maxSamples-1].Totals["executed"] != 2*maxSamples {
		t.Errorf("kept %d, from %+v", len(kept), kept[0])
	}
	if later := s.after(kept[maxSamples-3].At); len(later) != 2 {
		t.Errorf("%d later than the last but two", len(later))
	}
}
