package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// Route is one place where requests are protected.
type Route struct {
	Config
	gateway *Gateway
	recipe  *recipe // of new jobs' fingerprints
	known   *cache  // what replays need no store for

	unprovenTold atomic.Int64 // when it was last logged that no provider is proven
}

// NewRoute returns a route with the given settings on a gateway.
func NewRoute(g *Gateway, c Config) (*Route, error) {
	c = c.WithDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Route{
		Config: c, gateway: g, recipe: newRecipe(c.Fingerprint, c.Digester), known: newCache(c.CacheSize, c.CacheTTL),
	}, nil
}

// Serve answers a request: by passing it on unprotected, by running it as an
// attempt of its job, with the job's stored answer, or by refusing it. A refusal
// is returned as a *[Refusal] and not written; so is the error of an attempt
// that certainly had no effect, as its provider returned it.
func (rt *Route) Serve(w http.ResponseWriter, r *http.Request, x Exchange) error {
	caller := callerOf(r.Header)
	removeOwnHeaders(r.Header) // also where the request passes: an API may trust them
	keyed := len(r.Header.Values(rt.KeyHeader)) > 0
	if refusal := rt.screen(r, keyed); refusal != nil {
		if x.Account != nil {
			x.Account.refused(refusal)
		}
		rt.gateway.observer.Request(refusal.verdict())
		answerUnread(w, r)
		return refusal
	}
	if !rt.protects(r.Method) || (!keyed && !rt.KeyRequired) {
		if x.Account != nil {
			x.Account.Verdict = VerdictBypassed
		}
		rt.gateway.observer.Request(VerdictBypassed)
		screenTrailer(r)
		return x.Next(w, r)
	}
	key, sent, err := keyOf(r.Header, rt.KeyHeader)
	if err == nil {
		err = rt.KeyFormat.check(key, rt.KeyHeader)
	}
	release := rt.gateway.retain()
	defer release()
	c := &call{Route: rt, g: rt.gateway, w: w, r: r, x: x, caller: caller, traced: isTraced(r.Context())}
	defer c.open().close()
	switch {
	case errors.Is(err, errNoKey):
		err = refuseRequest(CodeKeyMissing, fmt.Sprintf("Send the header %s with a value of your own, the same on every repetition.", rt.KeyHeader))
	case err != nil:
		err = refuseRequest(CodeKeyInvalid, err.Error()+".")
	default:
		err = c.serve(key, sent)
	}
	if err != nil && !c.read {
		answerUnread(w, r)
	}
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		c.account.refused(refusal)
	}
	return err
}

// call is one protected request on its way.
type call struct {
	*Route
	g     *Gateway
	w     http.ResponseWriter
	r     *http.Request
	x     Exchange
	began time.Time

	traced  bool // by whoever has put a span into the request's context
	read    bool // the request's body was touched
	caller  keystore.Caller
	body    *requestBody
	keySent string // as the job's attempts send it: in the spelling that came first
	claim   keystore.Claim
	account *Account
	forgets uint64 // how often jobs had been forgotten on this gateway when it began

	recalled bool // what it gives comes from memory, and is no younger for being given
}

func (c *call) serve(key, sent string) error {
	// What needs only the header is judged before the body is read, so that a
	// client that waits for 100 Continue need not send it.
	owner := c.x.Owner()
	if owner == "" {
		return refuseRequest(CodeOwnerMissing, "The site could not tell whose request this is.")
	}
	if err := c.closed(); err != nil {
		return refuseStore(err)
	}
	c.read = c.r.ContentLength <= c.MaxRequestBody
	body, err := readBody(c.r.Body, c.r.ContentLength, c.Buffer, c.MaxRequestBody)
	if err != nil {
		return c.refuseBody(err)
	}
	defer body.release()
	c.body = body
	c.began = time.Now() // a slow upload is the client's, and not the upstream's, time

	fingerprint, err := c.recipe.fingerprint(c.x.Asked, body)
	if err != nil {
		return refuseStore(err)
	}
	if err := c.closed(); err != nil { // reading the body may have taken long
		return refuseStore(err)
	}
	// Without a token it is nobody's claim, and only reads.
	c.claim = keystore.Claim{Fingerprints: []keystore.Fingerprint{fingerprint}, Caller: c.caller}
	c.forgets = c.g.forgets.Load()
	name := c.Digester.NameOf(c.Space, owner, key)
	c.account.Record, c.account.Owner = name, c.Digester.OwnerDigest(owner)
	if done, err := c.remembered(name); done {
		return err
	}
	c.claim.Token, c.claim.First = keystore.NewToken(), true
	now := c.g.store.Now()
	c.keySent = sent
	job := keystore.NewJob(c.Keyring.SealJob(keystore.Job{
		Name: name, ID: keystore.NewJobID(name), Space: c.Space, Owner: c.account.Owner, KeySent: sent,
		Fingerprint: fingerprint, Request: c.info(), Created: now, Retention: c.Retention,
	}), c.newAttempt(c.claim.Token, c.providerFor(nil)))
	return c.create(job)
}

// closed says why no request with a key is served at present.
func (c *call) closed() error {
	if c.g.stopping() {
		return errStopped
	}
	if c.Admit != nil {
		return c.Admit()
	}
	return nil
}

// maxShown bounds each part of a request that operators are shown, in bytes. Clients
// can make it as long as the server takes, and a list of jobs has many of them.
const maxShown = 2 << 10

// bounded is what operators are shown of a part of the request.
func bounded(text string) string {
	if len(text) <= maxShown {
		return text
	}
	return strings.ToValidUTF8(text[:maxShown], "") + "…"
}

// info is what operators are shown of the request.
func (c *call) info() keystore.RequestInfo {
	asked := c.x.Asked
	info := keystore.RequestInfo{
		Method: bounded(asked.Method), Host: bounded(asked.Host), Path: bounded(cmp.Or(asked.URL.Path, asked.URL.Opaque)),
		MediaType: bounded(mediaType(contentType(asked.Header))), Size: c.body.size, Label: c.label(),
	}
	// As parts of the request's first line they would keep all of it in memory.
	const short = 256
	if len(asked.RequestURI) > len(info.Path)+short {
		info.Method, info.Host, info.Path = strings.Clone(info.Method), strings.Clone(info.Host), strings.Clone(info.Path)
	}
	return info
}

// label is what operators are shown of the request besides.
func (c *call) label() string {
	if c.Label == nil {
		return ""
	}
	const longest = 200
	label := c.Label(c.r)
	if len(label) > longest {
		label = strings.ToValidUTF8(label[:longest], "")
	}
	return strings.Clone(label) // it may be a part of something long
}

// refuseBody says why a request's body could not be taken. Nothing is claimed by then.
func (c *call) refuseBody(err error) error {
	limit := c.MaxRequestBody
	tooLarge, limited := errors.AsType[*http.MaxBytesError](err)
	if limited { // a limit of somebody around this handler
		limit = tooLarge.Limit
	}
	if limited || errors.Is(err, errBodyTooLarge) {
		return refuseRequest(CodeRequestTooLarge, fmt.Sprintf("At most %d bytes are taken.", limit))
	}
	if errors.Is(err, ErrBodyUnfinished) {
		return err
	}
	return refuseHeld(err) // a full disk, most likely
}

// create is the claim: in one step it makes the job's record, or finds out what
// is there.
func (c *call) create(job *keystore.Job) error {
	job.WriteID = keystore.NewWriteID()
	sent := time.Now()
	span := c.beginSpan(SpanClaim)
	present, created, err := c.g.store.Create(c.g.storeContext(), job)
	endSpan(span, err)
	c.account.inStore(sent)
	switch {
	case err != nil:
		return c.ambiguous(err, keystore.AbortedClaim{Token: c.claim.Token, Written: job})
	case created:
		return c.run(job, sent)
	case present == nil: // neither created nor there: a store that says this is not to be trusted
		return refuseStore(errors.New("the store has neither created the record nor found one"))
	}
	return c.judge(present, sent)
}

// ask asks the one decision function about a record, having made the fingerprint
// by the recipe that this record names: a job made before the route's settings
// were changed is compared as it was made. Everything that judges goes through here.
func (c *call) ask(j *keystore.Job, now keystore.Time) keystore.Verdict {
	if j != nil && !slices.ContainsFunc(c.claim.Fingerprints, j.Fingerprint.SameRecipe) {
		if rc := recipeOf(j.Fingerprint, c.Digester); rc != nil {
			f, err := rc.fingerprint(c.x.Asked, c.body)
			if err == nil {
				c.claim.Fingerprints = append(c.claim.Fingerprints, f)
			} else { // judged as of an unknown recipe, so nothing is dispatched
				c.g.log.Error("a request can't be compared with its job", slog.String("job", j.ID), slog.Any("error", err))
			}
		}
	}
	return keystore.Judge(j, c.claim, now)
}

// judge does what the one decision function says about the record that is there.
func (c *call) judge(present *keystore.Job, sent time.Time) error {
	known := present
	for {
		if present != nil {
			known = present
		}
		provider := ""
		if c.claim.First {
			c.claim.MaxAttempts = 0
			if provider = c.siblingProvider(present); provider != "" {
				c.claim.MaxAttempts = c.MaxAttempts
			}
		}
		now := c.g.store.Now()
		switch verdict := c.ask(present, now); verdict {
		case keystore.Own:
			return c.run(present, sent)
		case keystore.OwnNotLive:
			c.g.abort(keystore.AbortedClaim{Token: c.claim.Token, Written: present}, false)
			return refuseStore(errors.New("the claim had been given up on by the time its reply came")).about(present, now)
		case keystore.UnknownRecipe:
			return refuseStore(fmt.Errorf("the job's fingerprint was made by a recipe that this gateway does not know (%d %q)", present.Fingerprint.Recipe, present.Fingerprint.Settings)).about(present, now)
		case keystore.Loop:
			return refuseLoop().about(present, now)
		case keystore.Conflict:
			return c.refuseReused().about(present, now)
		case keystore.Replay:
			found, err := c.g.confirm(present)
			if err != nil {
				return refuseStore(err).about(present, now)
			}
			if found == present {
				return c.replay(present)
			}
			present = found
		case keystore.Start, keystore.StartSibling:
			opened, err := c.Keyring.OpenJob(present)
			if err != nil { // an attempt would have no key to send
				return c.refuseSealed(err, present)
			}
			c.keySent = opened.KeySent
			if verdict == keystore.Start {
				provider = c.providerFor(present)
			}
			next := present.Start(c.newAttempt(c.claim.Token, provider))
			next.WriteID = keystore.NewWriteID()
			ctx := c.g.storeContext()
			if err := c.g.indexLapsed(ctx, present); err != nil {
				return refuseStore(err).about(present, now)
			}
			sent = time.Now()
			span := c.beginSpan(SpanClaim)
			found, swapped, err := c.g.store.Swap(ctx, present.WriteID, next)
			endSpan(span, err)
			c.account.inStore(sent)
			if err != nil {
				return c.ambiguous(err, keystore.AbortedClaim{Token: c.claim.Token, Written: next, Expected: present.WriteID})
			}
			if swapped {
				c.g.tellLapsed(present, next)
				return c.run(next, sent)
			}
			present = found
		case keystore.Wait:
			found, err := c.wait(present)
			if err != nil {
				return err
			}
			present = found
		case keystore.Lapsed:
			began := time.Now()
			written, err := c.g.lapse(present)
			c.account.inStore(began)
			if err != nil {
				return refuseStore(err).about(present, now)
			}
			present = written
		case keystore.Blocked:
			return c.refuseUnknown().about(present, now)
		case keystore.NotExecuted:
			return refuseNotExecuted(present).about(present, now)
		default: // RecordLost; Create is not possible here, as whoever comes here only reads
			return refuseLost(known)
		}
		c.claim.First = false
	}
}

// ambiguous refuses a request of whose claim nobody knows whether it landed.
// Nothing was sent, and in the background the record comes to say so.
func (c *call) ambiguous(err error, aborted keystore.AbortedClaim) error {
	if inDoubt(err) {
		c.g.abort(aborted, false)
	}
	if errors.Is(err, keystore.ErrCorrupt) {
		c.g.log.Error("a job's record can't be read; requests with its key are refused until it is removed",
			slog.String("record", aborted.Written.Name.String()), slog.Any("error", err))
	}
	return refuseStore(err)
}
