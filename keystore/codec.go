package keystore

// The fields of a job, as its record has them.

// readJob returns the job that a codec has written, or nil if it was none.
func readJob(b []byte) *Job {
	c := codec{b: b}
	j := new(Job)
	c.job(j)
	if c.odd || c.at != len(b) {
		return nil
	}
	return j
}

// appendJob appends the job as its record has it.
func appendJob(b []byte, j *Job) []byte {
	short := *j
	short.ID = j.shortID()
	c := codec{writes: true, b: b, created: j.Created}
	c.job(&short)
	return c.b
}

func (c *codec) job(j *Job) {
	outer := c.open()
	c.array(1, j.Name[:], true)
	c.text(2, &j.ID, always)
	c.text(3, &j.Space, always)
	c.array(4, j.Owner[:], true)
	c.text(5, &j.KeySent, always)
	if c.field(6, true) {
		c.fingerprint(&j.Fingerprint)
	}
	if c.field(7, true) {
		c.request(&j.Request)
	}
	number(c, 8, &j.Created, always)
	number(c, 9, &j.Retention, always)
	number(c, 10, &j.Version, always)
	if c.field(11, true) {
		n := c.length(cborArray, len(j.Attempts), j.Attempts == nil)
		if !c.writes {
			j.Attempts = make([]Attempt, n)
		}
		for i := range j.Attempts {
			c.attempt(&j.Attempts[i])
		}
	}
	number(c, 12, &j.Dropped, ifSet)
	c.array(13, j.CompletedBy[:], !j.CompletedBy.IsZero())
	if c.field(14, j.Result != nil) {
		c.response(target(c, &j.Result))
	}
	c.instant(15, &j.Expires, ifSet)
	if c.field(16, j.KeySealed != nil) {
		c.sealed(target(c, &j.KeySealed))
	}
	c.close(outer)
}

func (c *codec) fingerprint(f *Fingerprint) {
	outer := c.open()
	number(c, 1, &f.Recipe, always)
	c.array(2, f.Sum[:], true)
	c.text(3, &f.Settings, ifSet)
	c.close(outer)
}

func (c *codec) request(r *RequestInfo) {
	outer := c.open()
	c.text(1, &r.Method, always)
	c.text(2, &r.Path, always)
	c.text(3, &r.MediaType, ifSet)
	number(c, 4, &r.Size, ifSet)
	c.text(5, &r.Label, ifSet)
	c.text(6, &r.Host, ifSet)
	c.close(outer)
}

func (c *codec) attempt(a *Attempt) {
	outer := c.open()
	number(c, 1, &a.Number, always)
	c.array(2, a.Token[:], true)
	c.text(3, &a.Provider, ifSet)
	number(c, 4, &a.State, always)
	number(c, 5, &a.Version, always)
	c.instant(6, &a.Started, always)
	c.instant(7, &a.Lease, always)
	c.instant(8, &a.ListensUntil, always)
	c.instant(9, &a.Ended, ifSet)
	c.reason(10, &a.Reason)
	if c.field(11, a.Evidence != Evidence{}) {
		c.evidence(&a.Evidence)
	}
	if c.field(12, a.Resolution != nil) {
		c.resolution(target(c, &a.Resolution))
	}
	if c.field(13, a.Lookups != Lookups{}) {
		c.lookups(&a.Lookups)
	}
	if c.field(40, a.Violation != nil) {
		c.violation(target(c, &a.Violation))
	}
	if c.field(41, a.Kept != nil) {
		c.response(target(c, &a.Kept))
	}
	c.text(60, &a.Trace, ifSet)
	c.close(outer)
}

func (c *codec) evidence(e *Evidence) {
	outer := c.open()
	c.text(1, &e.Upstream, ifSet)
	c.flag(2, &e.Hooked)
	number(c, 3, &e.Asked, ifSet)
	number(c, 4, &e.Connected, ifSet)
	number(c, 5, &e.Wrote, ifSet)
	number(c, 6, &e.FirstByte, ifSet)
	number(c, 7, &e.Status, ifSet)
	number(c, 8, &e.Size, ifSet)
	c.close(outer)
}

func (c *codec) resolution(r *Resolution) {
	outer := c.open()
	number(c, 1, &r.State, always)
	c.text(2, &r.Actor, always)
	c.text(3, &r.Evidence, always)
	c.instant(4, &r.At, always)
	c.array(5, r.ID[:], !r.ID.IsZero())
	c.flag(40, &r.Kept)
	c.close(outer)
}

func (c *codec) lookups(l *Lookups) {
	outer := c.open()
	number(c, 1, &l.Count, always)
	c.instant(2, &l.Last, always)
	number(c, 3, &l.Status, ifSet)
	c.text(4, &l.Note, ifSet)
	c.close(outer)
}

func (c *codec) violation(v *Violation) {
	outer := c.open()
	c.text(1, &v.Path, ifSet)
	c.text(2, &v.Expected, always)
	c.text(3, &v.Found, always)
	c.close(outer)
}

func (c *codec) response(r *Response) {
	outer := c.open()
	number(c, 1, &r.Status, always)
	c.header(2, &r.Header)
	c.header(3, &r.Trailer)
	c.blob(4, &r.Body, ifSet)
	number(c, 5, &r.Size, ifSet)
	c.flag(6, &r.NotKept)
	c.instant(7, &r.Answered, ifSet)
	if c.field(8, r.Apart != nil) {
		c.bodyRef(target(c, &r.Apart))
	}
	c.text(9, &r.SealedBy, ifSet)
	c.array(10, r.Sum[:], r.Sum != Digest{})
	c.close(outer)
}

func (c *codec) bodyRef(r *BodyRef) {
	outer := c.open()
	c.array(1, r.Token[:], true)
	number(c, 2, &r.Size, always)
	number(c, 3, &r.Sum, always)
	c.close(outer)
}

func (c *codec) sealed(s *Sealed) {
	outer := c.open()
	c.text(1, &s.By, always)
	c.blob(2, &s.Box, always)
	c.close(outer)
}
