package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

const (
	defaultAdminPage = 100
	maxAdminPage     = 1000
)

// jobsPage is a page of jobs.
type jobsPage struct {
	Jobs []*jobView `json:"jobs"`
	// Next is the cursor of the next page; there is none at the end. A page can
	// be shorter than its limit, and even empty, while there is a next one.
	Next string `json:"next,omitempty"`
}

// list returns a page of jobs, of one store at a time.
func (c *adminCall) list() (any, error) {
	q := c.r.URL.Query()
	filter, err := parseFilter(q)
	if err != nil {
		return nil, err
	}
	limit := defaultAdminPage
	if v := q.Get("limit"); v != "" {
		if limit, err = strconv.Atoi(v); err != nil || limit < 1 || limit > maxAdminPage {
			return nil, badCall(fmt.Errorf("limit %q: not a number from 1 to %d", v, maxAdminPage))
		}
	}
	at, own := 0, ""
	if cursor := q.Get("cursor"); cursor != "" {
		store, rest, err := splitCursor(cursor)
		if err != nil {
			return nil, err
		}
		own = rest
		at = slices.IndexFunc(c.stores, func(s adminStore) bool { return s.name == store })
		if at < 0 {
			return nil, badCall(fmt.Errorf("the cursor is of the store %q, which is not among those asked for; begin again without it", store))
		}
	}
	s := c.stores[at]
	jobs, next, err := s.gateway.Jobs(c.r.Context(), filter, own, limit)
	if err != nil {
		p := adminErrorOf(fmt.Errorf("list jobs in store %s: %w", s.name, err))
		if p.Code == codeInternal && own != "" {
			p = badCall(p) // it is the cursor that the store does not take
		}
		return nil, p
	}
	page := jobsPage{Jobs: make([]*jobView, 0, len(jobs))}
	now := s.store.Now()
	for _, j := range jobs {
		page.Jobs = append(page.Jobs, viewOf(j, s.name, now))
	}
	switch {
	case next != "":
		page.Next = joinCursor(s.name, next)
	case at+1 < len(c.stores):
		page.Next = joinCursor(c.stores[at+1].name, "")
	}
	return page, nil
}

var jobStates = []keystore.JobState{keystore.JobOpen, keystore.JobRunning, keystore.JobUnknown, keystore.JobCompleted}

func parseFilter(q url.Values) (f proxy.JobFilter, err error) {
	f.Space, f.Provider = q.Get("space"), q.Get("provider")
	if word := q.Get("state"); word != "" {
		i := slices.IndexFunc(jobStates, func(s keystore.JobState) bool { return s.String() == word })
		if i < 0 {
			return f, badCall(fmt.Errorf("state %q: a job is open, running, unknown or completed", word))
		}
		f.State = jobStates[i]
	}
	if age := q.Get("min_age"); age != "" {
		if f.MinAge, err = caddy.ParseDuration(age); err != nil || f.MinAge < 0 {
			return f, badCall(fmt.Errorf("min_age %q: not a duration such as 90s, 10m or 1d", age))
		}
	}
	return f, nil
}

// show returns one job.
func (c *adminCall) show() (any, error) {
	hit, err := c.byID()
	if err != nil {
		return nil, err
	}
	return hit.view(), nil
}

func (c *adminCall) byID() (found, error) {
	return c.lookIn(func(s adminStore) (*keystore.Job, error) { return s.gateway.Job(c.r.Context(), c.job) })
}

// findRequest names a job by its identity, in a body: neither owner nor key is
// to stand in URLs, and so in logs.
type findRequest struct {
	Space string `json:"space,omitempty"` // default: main
	// Owner is the caller: what the route's owner placeholder had come to.
	Owner string `json:"owner,omitempty"`
	// Shared stands for the owner of a route with `owner shared`.
	Shared bool   `json:"shared,omitempty"`
	Key    string `json:"key"`
}

// find returns the job of an identity.
func (c *adminCall) find() (any, error) {
	var req findRequest
	if err := c.body(&req); err != nil {
		return nil, err
	}
	owner := req.Owner // byte by byte, as a route has it: with a space more it is another one
	switch {
	case req.Key == "":
		return nil, badCall(errors.New("say which key"))
	case (strings.TrimSpace(owner) != "") == req.Shared:
		return nil, badCall(errors.New("say whose key it is: give owner, or \"shared\": true for a route with `owner shared`"))
	case req.Shared:
		owner = sharedOwner
	}
	space := cmp.Or(req.Space, proxy.DefaultSpace)
	hit, err := c.lookIn(func(s adminStore) (*keystore.Job, error) {
		return s.gateway.JobOf(c.r.Context(), s.secrets(space).digester, space, owner, req.Key)
	})
	if err != nil {
		return nil, err
	}
	return hit.view(), nil
}

// storeStats are the counts of one store.
type storeStats struct {
	Store         string `json:"store"`
	Path          string `json:"path,omitempty"` // of a store that is a file
	Running       int    `json:"running"`        // jobs in the index that are running
	Unknown       int    `json:"unknown"`        // jobs that are unknown
	OldestUnknown string `json:"oldest_unknown,omitempty"`
	Attempts      int    `json:"attempts"` // of this gateway, lingering ones included
	Waiters       int    `json:"waiters"`  // duplicates that wait on this gateway
}

// statsAnswer are counts by store.
type statsAnswer struct {
	Stores []storeStats `json:"stores"`
}

// stats returns counts.
func (c *adminCall) stats() (any, error) {
	var answer statsAnswer
	for _, s := range c.stores {
		n, err := s.gateway.Stats()
		if err != nil {
			return nil, fmt.Errorf("count jobs in store %s: %w", s.name, err)
		}
		counts := storeStats{
			Store: s.name, Path: s.path,
			Running: n.Running, Unknown: n.Unknown, Attempts: n.Attempts, Waiters: n.Waiters,
		}
		if n.Unknown > 0 {
			counts.OldestUnknown = readable(n.OldestUnknown)
		}
		answer.Stores = append(answer.Stores, counts)
	}
	return answer, nil
}
