package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// Reconcile says how a route's upstream is asked whether an unknown attempt was
// executed, and what its answers mean. Only the answers that a rule names settle
// anything; any other leaves the attempt unknown.
type Reconcile struct {
	// Lookup asks about an attempt. Its answer is whole, or there is an error.
	Lookup func(ctx context.Context, j *keystore.Job, a *keystore.Attempt) (*keystore.Response, error)
	// Every is how long after the first lookup the second one comes; from then on
	// the pause grows.
	Every time.Duration
	// For is how long a gateway goes on asking about an attempt.
	For   time.Duration
	Rules []ReconcileRule
	// ReplayFrom is a JSON pointer (RFC 6901) to the part of the lookup's answer
	// that becomes the result's body. Empty: the whole.
	ReplayFrom string
}

// ReconcileRule says what a status of a lookup's answer means.
type ReconcileRule struct {
	Statuses []int
	As       keystore.AttemptState // succeeded, failed or cancelled
	// After is how long has to have passed since the later of the attempt's end
	// and its lease's end. Failed and cancelled need one: a gateway that stands
	// still may yet be about to send.
	After time.Duration
}

// Defaults of a reconciler.
const (
	DefaultReconcileEvery = 5 * time.Second
	DefaultReconcileFor   = 15 * time.Minute
)

const (
	// confirmAfter is how far apart two answers have to be that permit another
	// execution.
	confirmAfter = 30 * time.Second
	// lookupTime bounds one lookup.
	lookupTime = 10 * time.Second
	// lookups bounds how many lookups are under way at once.
	lookups = 8
	// slowest is how many times longer than at first the pause gets.
	slowest = 12
	// reconcilerActor is whose decisions a reconciler's are.
	reconcilerActor = "reconciler"
)

func (rc *Reconcile) validate() error {
	switch {
	case rc.Lookup == nil:
		return errors.New("reconcile: says not how to ask; add lookup <method> <url>")
	case rc.Every < time.Millisecond:
		return fmt.Errorf("reconcile: every %v: must be at least 1ms", rc.Every)
	case rc.For < rc.Every:
		return fmt.Errorf("reconcile: for %v: must not be shorter than every (%v)", rc.For, rc.Every)
	case len(rc.Rules) == 0:
		return errors.New("reconcile: no answer would settle anything; add succeeded <status...>, and perhaps cancelled <status...> after <duration>")
	case rc.ReplayFrom != "" && !strings.HasPrefix(rc.ReplayFrom, "/"):
		return fmt.Errorf("reconcile: replay_from %s: a JSON pointer begins with /", rc.ReplayFrom)
	}
	seen := make(map[int]bool)
	for _, rule := range rc.Rules {
		switch {
		case len(rule.Statuses) == 0:
			return fmt.Errorf("reconcile: %s: names no status; write one, as in: %s 200", rule.As, rule.As)
		case rule.As != keystore.AttemptSucceeded && rule.As != keystore.AttemptFailed && rule.As != keystore.AttemptCancelled:
			return fmt.Errorf("reconcile: an answer can mean succeeded, failed or cancelled, not %s", rule.As)
		case rule.As != keystore.AttemptSucceeded && rule.After <= 0:
			return fmt.Errorf("reconcile: %s: permits another execution, so say how long after the end of the attempt the answer can be trusted, as in: %s %d after 2m",
				rule.As, rule.As, rule.Statuses[0])
		}
		for _, status := range rule.Statuses {
			if status < 200 || status > 599 || seen[status] {
				return fmt.Errorf("reconcile: %s %d: a status is one from 200 to 599, and stands in one rule", rule.As, status)
			}
			seen[status] = true
		}
	}
	return nil
}

func (rc *Reconcile) rule(status int) (ReconcileRule, bool) {
	for _, rule := range rc.Rules {
		if slices.Contains(rule.Statuses, status) {
			return rule, true
		}
	}
	return ReconcileRule{}, false
}

// instant is one moment on both clocks.
type instant struct {
	local time.Time
	store keystore.Time
}

// reconciler asks about the unknown attempts of one space.
type reconciler struct {
	*Reconcile
	g       *Gateway
	space   string
	keyring *keystore.Keyring
	// contract judges what would become a result; nil: none is asked for.
	contract *Contract
	cases    map[keystore.Token]*unknownCase
}

// unknownCase is what this gateway knows of one unknown attempt. It is kept in
// memory: several gateways ask for themselves, each at its own times, and
// resolving is a compare-and-swap.
type unknownCase struct {
	began, next time.Time
	pause       time.Duration
	lookups     keystore.Lookups
	// candidate is the rule that an answer has met that permits another
	// execution, and since when.
	candidate keystore.AttemptState
	since     time.Time
	executed  bool // an answer has said so, though it could not be made the result
	done      bool // asked for long enough
	present   bool // seen in the present round
}

// Reconcile asks about the route's unknown attempts until ctx ends.
func (rt *Route) Reconcile(ctx context.Context) {
	rc := &reconciler{Reconcile: rt.Config.Reconcile, g: rt.gateway, space: rt.Space, keyring: rt.Keyring, contract: rt.Contract, cases: make(map[keystore.Token]*unknownCase)}
	for {
		select {
		case <-ctx.Done():
			return
		case <-rt.gateway.ctx.Done():
			return
		case <-time.After(jitter(rc.Every / 2)):
		}
		if err := rc.round(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, keystore.ErrClosed) {
			rt.gateway.log.Warn("unknown attempts could not be looked for", slog.Any("error", err))
		}
	}
}

// round asks about the attempts whose time has come.
func (rc *reconciler) round(ctx context.Context) error {
	release := rc.g.retain()
	defer release()
	var asking sync.WaitGroup
	slots := make(chan struct{}, lookups)
	for _, c := range rc.cases {
		c.present = false
	}
	err := rc.g.pages(rc.g.store.List, func(j *keystore.Job) error {
		if j.Space != rc.space || !j.CompletedBy.IsZero() {
			return nil
		}
		for i := range j.Attempts {
			a := &j.Attempts[i]
			if a.State != keystore.AttemptUnknown {
				continue
			}
			c := rc.cases[a.Token]
			if c == nil {
				now := time.Now()
				c = &unknownCase{began: now, next: now, pause: rc.Every, lookups: a.Lookups}
				rc.cases[a.Token] = c
			}
			if c.present {
				continue // met before in this round: the index changes under the listing
			}
			c.present = true
			if c.done || time.Now().Before(c.next) {
				continue
			}
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			asking.Go(func() {
				defer func() { <-slots }()
				rc.ask(ctx, c, j, a)
			})
		}
		return nil
	})
	asking.Wait()
	for token, c := range rc.cases {
		if err == nil && !c.present {
			delete(rc.cases, token)
		}
	}
	return err
}

// ask makes one lookup and does what its answer means.
func (rc *reconciler) ask(ctx context.Context, c *unknownCase, j *keystore.Job, a *keystore.Attempt) {
	asked := instant{time.Now(), rc.g.store.Now()}
	answer, err := rc.lookup(ctx, j, a)
	if ctx.Err() != nil {
		return // it is over, by no fault of the upstream's
	}
	now := time.Now()
	if errors.Is(err, ErrNotAskable) {
		c.began, c.next, c.candidate = now, now.Add(jitter(rc.Every)), 0
		if note := noAnswer(err); c.lookups.Note != note {
			c.lookups.Note = note
			rc.note(c, j, a)
		}
		return
	}
	c.next = now.Add(jitter(c.pause))
	c.pause = min(c.pause*3/2, rc.Every*slowest)
	status := 0
	if answer != nil {
		status = answer.Status
	}
	before := c.lookups
	c.lookups.Count++
	c.lookups.Last, c.lookups.Status, c.lookups.Note = rc.g.store.Now(), status, ""
	switch rule, settles := rc.rule(status); {
	case err != nil:
		c.lookups.Note = noAnswer(err)
		c.candidate = 0
		rc.g.log.Info("a lookup of an unknown attempt failed", slog.String("job", j.ID), slog.Int("attempt", a.Number), slog.Any("error", err))
	case refusalCode(answer) != "":
		c.lookups.Note = "the lookup was refused by a gateway behind this one"
		c.candidate = 0
	case !settles:
		c.lookups.Note = "the answer's status is not one that settles anything"
		c.candidate = 0
	case rc.settle(ctx, c, rule, j, a, asked, answer):
		return
	}
	if now.Sub(c.began) >= rc.For {
		c.done = true
		c.lookups.Note = "asked for long enough (" + rc.For.String() + "); " + c.lookups.Note
		rc.g.log.Warn("an unknown attempt could not be settled by asking its upstream; resolve it by hand",
			slog.String("job", j.ID), slog.Int("attempt", a.Number), slog.Int("status", status))
	}
	// Not each lookup is worth a write; one that says something new is.
	if before.Count == 0 || before.Status != status || before.Note != c.lookups.Note {
		rc.note(c, j, a)
	}
}

// noAnswer says why no answer came, as far as that may be kept.
func noAnswer(err error) string {
	if note, ok := errors.AsType[LookupError](err); ok {
		return "no answer came: " + string(note)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer came within " + lookupTime.String()
	}
	return "no answer came"
}

// lookup asks about an attempt.
func (rc *reconciler) lookup(ctx context.Context, j *keystore.Job, a *keystore.Attempt) (answer *keystore.Response, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			answer, err = nil, fmt.Errorf("lookup broke off: %v", p)
		}
	}()
	opened, err := rc.keyring.OpenJob(j)
	if err != nil {
		rc.g.log.Error("an unknown attempt can't be asked about, since its job's key can't be decrypted", slog.String("job", j.ID), slog.Any("error", err))
		return nil, ErrLookupSealed
	}
	return rc.Lookup(ctx, opened, a)
}

// over is when nothing of an attempt can follow any more: neither is its gateway
// about to send, nor does it listen for an answer.
func over(a *keystore.Attempt) keystore.Time {
	if a.Ended.IsZero() {
		return max(a.Lease, a.ListensUntil)
	}
	return max(a.Lease, a.Ended)
}

// settle resolves the attempt, and reports whether it is settled. The answer says
// how things were when it was asked for.
func (rc *reconciler) settle(ctx context.Context, c *unknownCase, rule ReconcileRule, j *keystore.Job, a *keystore.Attempt, asked instant, answer *keystore.Response) bool {
	d := Decision{
		Job: j.ID, Attempt: a.Number, Token: a.Token, As: rule.As, Actor: reconcilerActor, Keyring: rc.keyring,
		Evidence: "a lookup was answered with status " + strconv.Itoa(answer.Status),
	}
	if c.candidate != rule.As {
		c.candidate = 0
	}
	if rule.As == keystore.AttemptSucceeded {
		c.executed = true
	} else if c.executed {
		c.lookups.Note = "the answers contradict each other: an earlier one said that it was executed"
		return false
	}
	if rule.After > 0 && asked.store.Sub(over(a)) < rule.After {
		c.candidate = 0
		c.lookups.Note = "too early to tell"
		return false
	}
	if rule.As != keystore.AttemptSucceeded {
		if c.candidate != rule.As {
			c.candidate, c.since = rule.As, asked.local
		}
		if asked.local.Sub(c.since) < confirmAfter {
			c.lookups.Note = "to be confirmed by a second answer"
			c.next = c.since.Add(confirmAfter)
			return false
		}
		d.Evidence += fmt.Sprintf(", at least twice, %v apart", confirmAfter)
	} else {
		resp, err := rc.result(answer)
		if err != nil {
			c.lookups.Note = err.Error()
			return false
		}
		d.Response = resp
	}
	_, err := rc.g.Resolve(ctx, d)
	switch {
	case err == nil, errors.Is(err, keystore.ErrNotResolvable), errors.Is(err, ErrNoJob):
		return true // by this one, or by somebody else in the meantime
	}
	rc.g.log.Warn("an unknown attempt could not be resolved", slog.String("job", j.ID), slog.Int("attempt", a.Number), slog.Any("error", err))
	return false
}

// result is the part of a lookup's answer that becomes the job's result.
func (rc *reconciler) result(answer *keystore.Response) (*keystore.Response, error) {
	result := storable(answer)
	if rc.ReplayFrom == "" {
		return result, rc.honours(result)
	}
	part, err := jsonPointer(answer.Body, rc.ReplayFrom)
	if err != nil {
		return nil, fmt.Errorf("replay_from: %w", err)
	}
	h := http.Header(result.Header)
	for _, name := range []string{"Content-Length", "Etag", "Content-Md5", "Digest", "Content-Digest", "Repr-Digest"} {
		h.Del(name) // of the whole
	}
	result.Body, result.Size = part, int64(len(part))
	return result, rc.honours(result)
}

// honours reports how a result breaks the route's contract: what comes out of a
// lookup is replayed like any other answer.
func (rc *reconciler) honours(result *keystore.Response) error {
	if rc.contract == nil {
		return nil
	}
	v := rc.contract.Judge(result)
	if v == nil {
		return nil
	}
	place := ""
	if v.Path != "" {
		place = " at " + v.Path
	}
	return fmt.Errorf("the lookup's answer breaks the contract%s: expected %s, found %s", place, v.Expected, v.Found)
}

// note leaves on the attempt what was learned.
func (rc *reconciler) note(c *unknownCase, j *keystore.Job, a *keystore.Attempt) {
	_, err := rc.g.update(rc.g.storeContext(), j.Name, j, true, 2, func(present *keystore.Job) (*keystore.Job, bool) {
		if present == nil || present.ID != j.ID {
			return nil, false
		}
		if own := present.Attempt(a.Token); own != nil && own.Lookups == c.lookups {
			return nil, false // an earlier send of this write
		}
		return present.NoteLookups(a.Token, c.lookups), false
	})
	if err != nil {
		rc.g.log.Warn("what a lookup said could not be recorded", slog.String("job", j.ID), slog.Any("error", err))
	}
}
