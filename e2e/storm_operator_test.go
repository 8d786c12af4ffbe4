package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/e2e/history"
)

// operator settles what is unknown, so that no key is blocked for ever. Like the
// best of them it looks at the upstream's journal first; unlike them it is wrong
// every now and then, and it may decide while the upstream is still at work.
type operator struct {
	s      *storm
	client http.Client

	mu        sync.Mutex
	decisions []history.Decision
}

// work settles what it finds until the storm is over. When the faults are, it makes
// no mistakes any more and leaves nothing undecided.
func (o *operator) work(ctx context.Context, rnd *rand.Rand, careful func() bool) {
	for ctx.Err() == nil {
		for _, j := range o.unknown(ctx, rnd) {
			for _, a := range j.Attempts {
				if a.State == "unknown" && ctx.Err() == nil {
					o.decide(ctx, rnd, j, a.Number, careful())
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(200+rnd.IntN(400)) * time.Millisecond):
		}
	}
}

// listedJob is what the operator is shown of a job.
type listedJob struct {
	shown
	Space string `json:"space"`
}

// unknown lists the jobs that are unknown, as some gateway sees them; none if it
// can't tell.
func (o *operator) unknown(ctx context.Context, rnd *rand.Rand) (jobs []listedJob) {
	at := o.s.posts[rnd.IntN(len(o.s.posts))].g.admin
	for cursor := "first"; cursor != ""; {
		var page struct {
			Jobs []listedJob `json:"jobs"`
			Next string      `json:"next"`
		}
		url := "http://" + at + "/idempotency/jobs?state=unknown&limit=1000"
		if cursor != "first" {
			url += "&cursor=" + cursor
		}
		if status, body := o.call(ctx, http.MethodGet, url, nil); status != http.StatusOK || json.Unmarshal(body, &page) != nil {
			return jobs
		}
		jobs, cursor = append(jobs, page.Jobs...), page.Next
	}
	return jobs
}

// decide settles an attempt, or leaves it for later.
func (o *operator) decide(ctx context.Context, rnd *rand.Rand, j listedJob, attempt int, careful bool) {
	e := o.s.ledger.of(j.ID, attempt)
	d := history.Decision{Job: j.ID, Attempt: attempt, As: "failed"}
	if e != nil && !e.refused {
		d.As, d.Answer = "succeeded", digest(e.body)
	}
	switch n := rnd.IntN(100); {
	case careful:
	case j.Space == lookupRoute || n < 40:
		return
	case n < 50:
		d.As = "cancelled"
	case n < 55:
		d.As = "failed"
	}
	call := map[string]any{"attempt": attempt, "as": d.As, "actor": "storm", "evidence": "the journal"}
	if d.As == "succeeded" {
		call["response"] = map[string]any{"status": http.StatusOK, "body": e.body}
	}
	body, err := json.Marshal(call)
	if err != nil {
		panic(err)
	}
	d.Began = o.s.now()
	url := fmt.Sprintf("http://%s/idempotency/jobs/%s/resolve", o.s.posts[rnd.IntN(len(o.s.posts))].g.admin, j.ID)
	status, _ := o.call(ctx, http.MethodPost, url, body)
	d.Ended = o.s.now()
	switch status {
	case http.StatusConflict, http.StatusNotFound: // somebody else was faster
		return
	case unreached:
		return
	}
	o.mu.Lock()
	o.decisions = append(o.decisions, d)
	o.mu.Unlock()
}

// unreached stands for the status of a call that reached nobody.
const unreached = -1

// call calls the admin API. A status of 0 says that there was no answer.
func (o *operator) call(ctx context.Context, method, url string, body []byte) (status int, answer []byte) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := o.client.Do(req)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return unreached, nil
	case err != nil:
		return 0, nil
	}
	defer resp.Body.Close()
	if answer, err = io.ReadAll(resp.Body); err != nil {
		return 0, nil
	}
	return resp.StatusCode, answer
}
