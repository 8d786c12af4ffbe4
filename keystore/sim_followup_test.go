package keystore

// failover writes the failure and the next provider's start in one.
func (a *actor) failover(r Report) {
	before, started := a.token, a.sent
	if a.present == nil || a.present.Attempt(before) == nil {
		a.report(r, untilDefinite)
		return
	}
	n := a.draw()
	r.Token, r.At = before, n.At
	s := a.present.FailOver(r, n, a.key.max)
	if !s.Starts {
		a.token, a.sent = before, started
		a.report(r, untilDefinite)
		return
	}
	a.sim.truth(a.token).sibling = s.Next.Version == a.present.Version
	w := write{expected: a.present.WriteID, job: a.sim.newWrite(s.Next)}
	claim := AbortedClaim{Token: a.token, Written: w.job, Expected: w.expected}
	present, got := a.send(w, 2)
	switch {
	case got == ambiguous:
		a.abort(claim)
	case got == applied:
		a.dispatch(claim, present)
	case present != nil && present.Attempt(a.token) != nil:
		if Judge(present, Claim{Token: a.token}, a.sim.store.now) == Own {
			a.dispatch(claim, present)
		} else {
			a.abort(claim)
		}
	default:
		a.token, a.sent, a.present = before, started, present
		if got == outdated {
			a.present = a.get()
		}
		a.report(r, untilDefinite)
	}
}

// race starts an attempt beside another one of the same request.
func (a *actor) race(of Token) {
	n := a.draw()
	a.sim.truth(a.token).sibling = true
	present := a.get()
	for range 3 {
		if present == nil {
			return
		}
		n.At = a.sim.store.now
		next := present.StartSibling(of, n, a.key.max)
		if next == nil {
			return
		}
		w := write{expected: present.WriteID, job: a.sim.newWrite(next)}
		claim := AbortedClaim{Token: a.token, Written: w.job, Expected: w.expected}
		var got reply
		present, got = a.send(w, 2)
		switch {
		case got == ambiguous:
			a.abort(claim)
			return
		case got == applied:
			a.dispatch(claim, present)
			return
		case present != nil && present.Attempt(a.token) != nil:
			if Judge(present, Claim{Token: a.token}, a.sim.store.now) == Own {
				a.dispatch(claim, present)
			} else {
				a.abort(claim)
			}
			return
		}
	}
}

// abort goes on until the claim is definite. Nothing was sent.
func (a *actor) abort(c AbortedClaim) {
	truth := a.sim.truth(a.token)
	truth.aborted = true
	present := a.get()
	for {
		next, create := c.Next(present, a.sim.store.now)
		if next == nil {
			break
		}
		w := write{create: create, job: a.sim.newWrite(next)}
		if present != nil {
			w.expected = present.WriteID
		}
		var r reply
		if present, r = a.send(w, untilDefinite); r == applied {
			break
		}
		if r == outdated {
			present = a.get()
		}
	}
	truth.definite = true
	a.sim.checkAborted(c)
}
