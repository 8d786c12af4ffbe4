/*
 * The state machine of one job, with everything that can go wrong around it.
 * README.md says what stands for what, and what is left out.
 *
 * Switches of a configuration, all off or zero unless given:
 *   REQUEST2, REQUEST3  the second and the third attempt are fresh requests of their own
 *   TWO                 there are two attempts only
 *   FAILOVER            a proven failure is followed by the next attempt in the same write
 *   RACING              siblings may run side by side, MAX=n attempts at most (3)
 *   SPLIT               between the decision on a report and its swap anything can happen
 *   FAULTS=n            how many messages to the store are delayed, cut or lost
 *   OPS=n               how many decisions an operator makes
 *   WRONG               the operator may decide wrongly
 *   CRASHES=n  RENEWALS=n
 *   GONE=n              how often the job expires or is forgotten
 *   LOSSES=n            how often the store loses the record or goes back to an earlier one
 *   DURABLE             but never behind a write that it has acknowledged
 *   CALM                leases lapse only once their attempts are over
 *   OTHER_INPUT         the last request may bring another input
 * BREAK_… breaks one rule.
 */
#ifndef FAULTS
#define FAULTS 0
#endif
#ifndef OPS
#define OPS 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef RENEWALS
#define RENEWALS 0
#endif
#ifndef GONE
#define GONE 0
#endif
#ifndef LOSSES
#define LOSSES 0
#endif
#ifndef RACING
#define MAX 0 /* attempts of a job on a racing route */
#elif !defined(MAX)
#define MAX 3
#endif

/* States of an attempt. No: the record does not list it. */
#define No        0
#define Starting  1
#define Succeeded 2
#define Failed    3
#define Unknown   4
#define Cancelled 5
#define Discarded 6

/* Outcomes that a gateway reports. */
#define Running     1
#define Final       2
#define ProvenFail  3
#define Unsure      4

/* Effects of a report. */
#define EffNone      0
#define EffRenewed   1
#define EffWon       2
#define EffAlready   3
#define EffFailed    4
#define EffUnknown   5
#define EffDiscarded 6
#define EffEvidence  7
#define EffLost      8

/* Verdicts on a claim. */
#define Create      1
#define RecordLost  2
#define Own         3
#define OwnNotLive  4
#define Conflict    5
#define Replay      6
#define Wait        7
#define Blocked     8
#define Sibling     9
#define Start      10
#define NotExec    11

/* What has become of an attempt at its upstream. */
#define Unsent    0
#define May       1 /* it was sent, and may have its effect yet */
#define Executed  2
#define Never     3 /* it was sent, and will have no effect */

/* The lease, and what comes after it. */
#define Fresh     0
#define HalfOver  1
#define Lapsed    2
#define Over      3 /* its gateway has nothing to say any more */
#define Old       4 /* older than the retention of its job */

/* How an attempt comes to be. */
#define Idle      0
#define Claimed   1 /* by the failover of the attempt before it */
#define Doubtful  2 /* by a failover of which nobody knows whether it landed */
#define Races     3 /* it is to be started beside another one */

/* Attempts are named by their tokens, 1 to 3; so is the answer of each. */
#define Operators 4 /* the answer that an operator gives */

typedef Rec {
	bit there;
	byte wid;      /* write id */
	byte id;       /* of the job: the token that created it */
	bit input;     /* fingerprint */
	byte version;
	byte by;       /* completed_by */
	byte result;
	bit expires;
	byte st[4];
	byte ver[4];
	byte res[4];   /* resolution */
	bit ended[4]
}

Rec rec;          /* what the store has */
Rec net;          /* a write on its way, */
byte netExp;      /* what it expects to replace, zero for a create, */
byte netOf;       /* whose it is, */
bit netBack;      /* and whether it brings back what the store has lost */
Rec w[4];         /* per attempt: its write at hand, then what it knows of the record */
byte exp[4];
#if LOSSES > 0 || GONE > 0
Rec last[4];      /* per attempt: the record as its gateway saw it last */
#define KEEP_LAST
#endif
#if LOSSES > 0
Rec copy;         /* what the store goes back to */
#endif

byte faults = FAULTS, ops = OPS, crashes = CRASHES, renewals = RENEWALS, gone = GONE, losses = LOSSES;
byte phase[4], up[4], go[4], parent[4];
bit input[4], begun[4], reads[4], done[4], dead[3]; /* reads: it has waited, or had a write refused */

/* What is true, whatever the record says. */
byte given;        /* the answer that clients were given */
bit applied[4];    /* a write that lists it got into the store */
bit aborting[4], definite[4], silent[4], answered[4], told[4];
bit lossy, wrong;

hidden Rec x; /* scratch */
hidden byte nx, eff, fresh, verdict, ok, n, before;
hidden byte contra, creates, starts, recovers;

/* The requests, and the gateways they come to; an attempt that follows runs where that before it did. */
#ifdef REQUEST2
#define free2 false
#define gateway2 2
#else
#define free2 (!begun[2])
#define gateway2 1
#endif
#ifdef TWO
#define free3 false
#define gateway3 1
#elif defined(REQUEST3)
#define free3 false
#define gateway3 2
#else
#define free3 (!begun[3])
#define gateway3 1
#endif
#define gateway(t) (t == 1 -> 1 : (t == 2 -> gateway2 : gateway3))
#define request(t) (t == 1 || (t == 2 && gateway2 == 2) || (t == 3 && gateway3 == 2))
#define follower (free2 -> 2 : (free3 -> 3 : 0))

#define U(r, i)    (r.st[i] == Starting || r.st[i] == Unknown)
#ifdef BREAK_LAPSED_IS_FREE
#define UNRES(r, i) (r.st[i] == Unknown || (r.st[i] == Starting && phase[i] < Lapsed))
#elif defined(BREAK_UNKNOWN_IS_OPEN)
#define UNRES(r, i) (r.st[i] == Starting)
#else
#define UNRES(r, i) U(r, i)
#endif
#define unresolved(r)  (r.by == 0 && (U(r, 1) || U(r, 2) || U(r, 3)))
#define blocked(r)     (r.by == 0 && (UNRES(r, 1) || UNRES(r, 2) || UNRES(r, 3)))
#define live(r, i)     (r.st[i] == Starting && phase[i] < Lapsed)
#define running(r)     (r.by == 0 && (live(r, 1) || live(r, 2) || live(r, 3)))
#define count(r)       ((r.st[1] != No) + (r.st[2] != No) + (r.st[3] != No))

inline set(a, b) {
	a.there = b.there; a.wid = b.wid; a.id = b.id; a.input = b.input; a.version = b.version;
	a.by = b.by; a.result = b.result; a.expires = b.expires;
	a.st[1] = b.st[1]; a.st[2] = b.st[2]; a.st[3] = b.st[3];
	a.ver[1] = b.ver[1]; a.ver[2] = b.ver[2]; a.ver[3] = b.ver[3];
	a.res[1] = b.res[1]; a.res[2] = b.res[2]; a.res[3] = b.res[3];
	a.ended[1] = b.ended[1]; a.ended[2] = b.ended[2]; a.ended[3] = b.ended[3]
}

inline clear(a) {
	a.there = 0; a.wid = 0; a.id = 0; a.input = 0; a.version = 0; a.by = 0; a.result = 0; a.expires = 0;
	a.st[1] = 0; a.st[2] = 0; a.st[3] = 0; a.ver[1] = 0; a.ver[2] = 0; a.ver[3] = 0;
	a.res[1] = 0; a.res[2] = 0; a.res[3] = 0; a.ended[1] = 0; a.ended[2] = 0; a.ended[3] = 0
}

/* draw gives x a write id that nothing bears that could still meet it. */
#if LOSSES > 0
#define inCopy(i) (copy.wid == i)
#else
#define inCopy(i) false
#endif
#define borne(i) (rec.wid == i || net.wid == i || netExp == i || inCopy(i) || \
	w[1].wid == i || w[2].wid == i || w[3].wid == i || exp[1] == i || exp[2] == i || exp[3] == i)
inline draw() {
	fresh = 1;
	do
	:: borne(fresh) -> fresh++
	:: else -> break
	od;
	x.wid = fresh
}

/* ---- the rules, as in keystore: they change x ---- */

inline fixExpiry() { x.expires = !unresolved(x) }

inline lapseOne(i) {
	if
#ifdef BREAK_LAPSED_HAS_FAILED
	:: x.st[i] == Starting && phase[i] >= Lapsed -> x.st[i] = Failed; fixExpiry()
#else
	:: x.st[i] == Starting && phase[i] >= Lapsed -> x.st[i] = Unknown
#endif
	:: else
	fi
}
inline lapse() { lapseOne(1); lapseOne(2); lapseOne(3) }

inline start(t) {
	lapse();
	if
#ifdef BREAK_SIBLINGS_SHARE_NO_VERSION
	:: true -> x.version++
#elif defined(BREAK_NEXT_ATTEMPT_KEEPS_THE_VERSION)
	:: count(x) == 0 -> x.version++
	:: else
#else
	:: !unresolved(x) -> x.version++
	:: else
#endif
	fi;
	x.st[t] = Starting; x.ver[t] = x.version; x.res[t] = 0; x.ended[t] = 0;
#ifdef BREAK_NEXT_ATTEMPT_RENAMES_THE_JOB
	x.id = t;
#endif
#ifndef BREAK_NEXT_ATTEMPT_KEEPS_THE_EXPIRY
	x.expires = 0;
#endif
	skip
}

#ifdef BREAK_OWN_CLAIM_IS_ANOTHERS
#define listed(r, i) false
#else
#define listed(r, i) (r.st[i] != No)
#endif
#ifdef BREAK_NO_MAXIMUM
#define room(r) (MAX > 0)
#else
#define room(r) (count(r) < MAX)
#endif

/* judge decides what a claim of t does about r. */
inline judge(r, t, first) {
	if
	:: !r.there -> verdict = (first -> Create : RecordLost)
	:: r.there && listed(r, t) && live(r, t) && r.by == 0 -> verdict = Own
	:: r.there && listed(r, t) && !(live(r, t) && r.by == 0) -> verdict = OwnNotLive
	:: r.there && !listed(r, t) ->
		if
#ifdef BREAK_STATE_BEFORE_FINGERPRINT
		:: r.input != input[t] && !running(r) -> verdict = Conflict
#elif defined(BREAK_NO_FINGERPRINT)
		:: false
#else
		:: r.input != input[t] -> verdict = Conflict
#endif
		:: else ->
			if
#ifdef BREAK_COMPLETED_IS_OPEN
			:: r.by != 0 -> verdict = (first -> Start : Replay)
#else
			:: r.by != 0 -> verdict = Replay
#endif
#ifdef BREAK_RACES_BESIDE_RUNNING
			:: r.by == 0 && running(r) -> verdict = (first && room(r) -> Sibling : Wait)
#elif defined(BREAK_RUNNING_IS_OPEN)
			:: r.by == 0 && running(r) -> verdict = (first -> Start : Wait)
#else
			:: r.by == 0 && running(r) -> verdict = Wait
#endif
			:: r.by == 0 && !running(r) && blocked(r) ->
#ifdef BREAK_WAITER_ADDS_SIBLING
				verdict = (room(r) -> Sibling : Blocked)
#else
				verdict = (first && room(r) -> Sibling : Blocked)
#endif
			:: r.by == 0 && !running(r) && !blocked(r) ->
#ifdef BREAK_WAITER_BECOMES_LEADER
				verdict = Start
#else
				verdict = (first -> Start : NotExec)
#endif
			fi
		fi
	fi
}

inline discardSibling(i, winner) {
	if
	:: i != winner && U(x, i) -> x.st[i] = Discarded
	:: else
	fi
}
inline takeSlot(winner, what) {
	x.by = winner; x.result = what;
#ifndef BREAK_SLOT_IS_OVERWRITTEN /* the version guards it too */
	x.version++;
#endif
#ifndef BREAK_SIBLINGS_STAY
	discardSibling(1, winner); discardSibling(2, winner); discardSibling(3, winner);
#endif
	fixExpiry()
}

#ifdef BREAK_SLOT_IS_OVERWRITTEN
#define slotTaken(t) false
#else
#define slotTaken(t) (x.by != 0)
#endif
#ifdef BREAK_COMMIT_IGNORES_VERSION
#define overtaken(t) false
#else
#define overtaken(t) (x.version != x.ver[t])
#endif

/* settle is for an attempt whose state a report may still decide. */
inline settle(t, out, listening) {
	nx = 1;
	if
	:: out == Final && (slotTaken(t) || overtaken(t)) -> x.st[t] = Discarded; x.ended[t] = 1; fixExpiry(); eff = EffDiscarded
	:: out == Final && !(slotTaken(t) || overtaken(t)) -> x.st[t] = Succeeded; x.ended[t] = 1; takeSlot(t, t); eff = EffWon
	:: out == ProvenFail -> x.st[t] = Failed; x.ended[t] = 1; fixExpiry(); eff = EffFailed
#ifdef BREAK_SILENCE_IS_FAILURE
	:: out == Unsure -> x.st[t] = Failed; x.ended[t] = x.ended[t] || !listening; fixExpiry(); eff = EffFailed
#else
	:: out == Unsure -> x.st[t] = Unknown; x.ended[t] = x.ended[t] || !listening; eff = EffUnknown
#endif
	fi
}

/* note adds what was seen to an attempt whose state stands. */
inline note(t, out, listening) {
	if
	:: x.ended[t] || (out == Unsure && listening)
	:: else -> x.ended[t] = 1; nx = 1; eff = EffEvidence
	fi
}

inline report(t, out, listening) {
	nx = 0; eff = EffNone;
	if
	:: out == Running && (x.st[t] == Starting
#ifdef BREAK_RENEWAL_REVIVES
		|| x.st[t] == Unknown
#endif
		) -> x.st[t] = Starting; nx = 1; eff = EffRenewed
	:: out != Running && x.st[t] == Starting -> settle(t, out, listening)
	:: out != Running && x.st[t] == Unknown ->
		if
		:: out == Unsure && (listening || x.ended[t])
#ifdef BREAK_LATE_RESULT_IS_DROPPED
		:: out == Final -> note(t, out, listening)
#endif
#ifdef BREAK_LATE_PROOF_IS_DROPPED
		:: out == ProvenFail -> note(t, out, listening)
#endif
		:: else -> settle(t, out, listening)
		fi
	:: out != Running && x.st[t] == Failed ->
		if
		:: x.res[t] == 0 || out != Final -> note(t, out, listening)
#ifdef BREAK_FAILURE_IS_CONTRADICTED_IN_SILENCE
		:: else -> settle(t, out, listening)
#elif defined(BREAK_RESOLVED_FAILURE_IS_FINAL)
		:: else -> note(t, out, listening); contra = 1
#else
		:: else -> settle(t, out, listening); contra = 1
#endif
		fi
	:: out != Running && x.st[t] == Cancelled ->
		if
		:: out == Unsure && listening
#ifdef BREAK_CANCEL_THEN_COMMIT
		:: out == Final -> settle(t, out, listening); contra = 1
#elif defined(BREAK_CANCELLED_IS_FINAL)
		:: out == Final -> note(t, out, listening); contra = 1
#elif defined(BREAK_CANCELLED_IS_CONTRADICTED_IN_SILENCE)
		:: out == Final -> x.st[t] = Discarded; x.ended[t] = 1; fixExpiry(); nx = 1; eff = EffDiscarded
#endif
		:: else -> x.st[t] = Discarded; x.ended[t] = 1; fixExpiry(); nx = 1; eff = EffDiscarded; contra = (out == Final)
		fi
	:: out != Running && x.st[t] == Succeeded ->
		if
#ifdef BREAK_OWN_COMMIT_IS_ANOTHERS
		:: x.res[t] != Succeeded -> settle(t, out, listening)
#endif
		:: x.res[t] != Succeeded ->
			eff = EffAlready;
			if
#ifndef BREAK_CONTRADICTION_IS_TOLD_ONCE
			:: x.res[t] != 0 && out == Final -> contra = 1
#endif
			:: else
			fi
		:: else ->
			if
#ifndef BREAK_SUCCESS_IS_CONTRADICTED_IN_SILENCE
			:: out == ProvenFail || (out == Final && x.result != t) -> contra = 1
#endif
			:: else
			fi;
			note(t, out, listening)
		fi
	:: out != Running && x.st[t] == Discarded ->
		if
#ifndef BREAK_CONTRADICTION_IS_TOLD_ONCE
		:: out == Final && x.res[t] != 0 -> contra = 1
#endif
		:: else
		fi;
		note(t, out, listening)
	:: else
	fi
}

#define proven(r, i) (r.st[i] == Failed && r.res[i] == 0 && r.ended[i])
/* provenOne adds to x that i failed, as r says by i's own proof. */
inline provenOne(r, i, t) {
	if
	:: i != t && proven(r, i) && x.st[i] != No ->
		report(i, ProvenFail, 0); n = n || nx
	:: else
	fi
}

/* decide is what a report of t does to the record that is there: x is to be written if nx. */
#ifdef KEEP_LAST
/* comesBack: the store has lost t, and nothing speaks against its coming back. */
#define against(i, t) (i != t && U(rec, i) && !proven(last[t], i))
#define undecided(t) (U(last[t], t) && last[t].res[t] == 0)
#define comesBack(t) (!(rec.there && rec.st[t] != No) && undecided(t) && phase[t] != Old && \
	(!rec.there || (rec.id == last[t].id && rec.by == 0 && !against(1, t) && !against(2, t) && !against(3, t))))
inline decide(t, out, listening) {
	nx = 0; creates = 0; recovers = 0; eff = EffLost;
	set(x, rec);
	if
	:: rec.there && rec.st[t] != No -> report(t, out, listening)
	:: else ->
		if
#ifndef BREAK_RECOVERS_WHAT_WAS_DECIDED
		:: !undecided(t)
#endif
#ifndef BREAK_RECOVERS_WHAT_IS_OLD
		:: phase[t] == Old
#endif
#ifdef BREAK_NEVER_RECOVERS
		:: true
#endif
		:: else ->
			if
			:: !rec.there ->
				set(x, last[t]); report(t, out, listening); nx = 1; creates = 1; recovers = 1;
#ifdef BREAK_RECOVERS_UNDER_ANOTHER_ID
				x.id = t;
#endif
				skip
			:: else ->
#ifndef BREAK_RECOVERS_NO_PROOF
				/* what the write that started it said of others is lost with it, and true all the same */
				n = 0; provenOne(last[t], 1, t); provenOne(last[t], 2, t); provenOne(last[t], 3, t);
				n = 0; nx = 0; contra = 0; eff = EffLost;
#endif
				if
#ifdef BREAK_RECOVERS_BESIDE
				:: x.id != last[t].id || x.by != 0
#elif defined(BREAK_RECOVERS_INTO_ANOTHER_JOB)
				:: x.by != 0 || unresolved(x)
#else
				:: x.id != last[t].id || x.by != 0 || unresolved(x)
#endif
				:: else ->
					x.st[t] = last[t].st[t]; x.res[t] = last[t].res[t]; x.ended[t] = last[t].ended[t];
					x.ver[t] = x.version;
					report(t, out, listening);
					fixExpiry();
					nx = 1; recovers = 1
				fi
			fi
		fi
	fi
}
#define remember(t) set(last[t], rec)
#else
inline decide(t, out, listening) {
	nx = 0; creates = 0; recovers = 0; eff = EffLost;
	set(x, rec);
	if
	:: rec.there && rec.st[t] != No -> report(t, out, listening)
	:: else -> assert(false) /* without loss and expiry there is nothing to recover */
	fi
}
#define remember(t) skip
#define comesBack(t) false
#define undecided(t) true
#endif

/* abort decides what a claim of t writes next that was never dispatched: x if nx. */
inline abort(t) {
	nx = 0; creates = 0; recovers = 0; n = 0;
	if
#ifdef BREAK_ABORT_LEAVES_THE_CREATE
	:: !rec.there && exp[t] == 0
#else
	:: !rec.there && exp[t] == 0 -> set(x, w[t]); report(t, ProvenFail, 0); nx = 1; creates = 1
#endif
	:: !rec.there && exp[t] != 0
#ifdef BREAK_ABORT_LEAVES_THE_UNKNOWN
	:: rec.there && rec.st[t] == Unknown
#endif
	:: rec.there && rec.st[t] != No -> set(x, rec); report(t, ProvenFail, 0)
#ifndef BREAK_ABORT_LEAVES_THE_SWAP
	:: rec.there && rec.st[t] == No && exp[t] != 0 && rec.wid == exp[t] ->
		set(x, w[t]); report(t, ProvenFail, 0)
#endif
	:: else ->
		set(x, rec);
#ifndef BREAK_ABORT_FORGETS_THE_PROOF
		provenOne(w[t], 1, t); provenOne(w[t], 2, t); provenOne(w[t], 3, t);
#endif
		nx = n
	fi
}

/* ---- the store, and what must hold of every change of the record ---- */

#define ended_(s) (s == Succeeded || s == Discarded)
#define leads(a, b, r) (a == b || a == No || a == Starting || \
	(a == Unknown && b != Starting) || \
	(a == Failed && r != 0 && (b == Succeeded || b == Discarded)) || \
	(a == Cancelled && b == Discarded))

/* a is about to take the place of rec */
inline checkAttempt(a, i, j, k) {
	/* nothing is dropped, and no state is left that stands */
	assert(!rec.there || rec.st[i] == No || a.st[i] != No);
	assert(!rec.there || leads(rec.st[i], a.st[i], rec.res[i]));
	/* the first invariant */
	assert(!(rec.st[i] == No && a.st[i] == Starting && !recovers) ||
		(a.by == 0 && !reads[i] && a.input == input[i] && (lossy || !told[parent[i]] || MAX > 0) &&
		((!U(a, j) && !U(a, k)) || (MAX > 0 && count(a) <= MAX))));
	assert(!(rec.st[i] == No && a.st[i] == Starting && !recovers && MAX > 0 && parent[i] == 0) ||
		(!live(a, j) && !live(a, k)));
	/* an attempt's version is what the design says */
	assert(!(rec.st[i] == No && a.st[i] == Starting && !recovers) || a.ver[i] == a.version &&
		(lossy || !rec.there || a.version == rec.version + !(U(a, j) || U(a, k))));
	/* what the store lost comes back only where nothing speaks against it but what is known better */
	assert(!(recovers && rec.there && rec.st[i] == No && a.st[i] != No) ||
		(rec.by == 0 && (!U(rec, j) || proven(a, j)) && (!U(rec, k) || proven(a, k))));
	assert(!(a.by != 0 && U(a, i)));
	/* a proof is a proof */
	assert(!(a.st[i] == Failed && a.res[i] == 0) || up[i] == Unsent || up[i] == Never);
	assert(!(definite[i] && U(a, i)) || lossy);
	applied[i] = applied[i] || a.st[i] != No
}

inline check(a) {
	if
	:: rec.there ->
		assert(a.id == rec.id && a.input == rec.input && a.version >= rec.version);
		/* the second invariant: the slot is written once, by whoever was not overtaken */
		assert(rec.by == 0 || (a.by == rec.by && a.result == rec.result));
		assert(!(rec.by == 0 && a.by != 0) || a.version == rec.version + 1);
		assert(!(rec.by == 0 && a.by != 0 && a.res[a.by] != Succeeded) || a.ver[a.by] == rec.version)
	:: else
		/* a job that is there again without a claim, although nothing was lost */
		-> assert(!recovers || lossy)
	fi;
	/* the third: what is unresolved has no expiry */
	assert(a.expires == !unresolved(a));
	assert(a.by == 0 || a.st[a.by] == Succeeded);
	checkAttempt(a, 1, 2, 3); checkAttempt(a, 2, 1, 3); checkAttempt(a, 3, 1, 2)
}

/* put is create, with nothing expected, or swap. */
#ifdef BREAK_NO_WRITE_ID
#define mine(a, e) (rec.wid == a.wid || (e != 0 && rec.version == a.version && (rec.by != 0) == (a.by != 0)))
#else
#define mine(a, e) (rec.wid == a.wid)
#endif
inline put(a, e) {
	ok = 0;
	if
	:: rec.there && mine(a, e) -> ok = 1
#ifdef BREAK_CREATE_OVERWRITES
	:: !(rec.there && mine(a, e)) && (e == 0 || rec.there && rec.wid == e) ->
#elif defined(BREAK_SWAP_IS_BLIND)
	:: !(rec.there && mine(a, e)) && (e == 0 && !rec.there || e != 0 && rec.there) ->
#else
	:: !(rec.there && mine(a, e)) && (e == 0 && !rec.there || e != 0 && rec.there && rec.wid == e) ->
#endif
		ok = 1; check(a); set(rec, a)
	:: else
	fi
}

/* What a store that says so has acknowledged is in the copy. */
#ifdef DURABLE
#define acknowledge() set(copy, rec)
#else
#define acknowledge() skip
#endif

/* onItsWay leaves a write to the network: it lands later, or never. */
inline onItsWay(a, e, t) { netExp = e; netOf = t; netBack = recovers; set(net, a); faults-- }
#define canFail (faults > 0 && !net.there)

#ifdef DURABLE
#define excused false
#else
#define excused lossy
#endif
/* give is an answer from the record, or one that was told to be recorded. */
inline give(answer) {
#ifdef DURABLE
	assert(copy.by != 0 && copy.result == answer); /* nobody is told what is not acknowledged yet */
#endif
	assert(given == 0 || given == answer || excused);
	given = answer
}
/* giveOwn is that of t to its own client. If its job is gone meanwhile, it is no answer of the job that is there now. */
inline giveOwn(t) {
	if
	:: phase[t] != Old -> give(t)
	:: else
	fi
}

/* spin lets nobody jump to a d_step; a choice that is none comes before it. */
#define landing false

/* ---- one attempt, and the request that wants it ---- */

inline forgetWrite(t) { clear(w[t]); exp[t] = 0; rename() }

/* rename keeps one name for the record's write id where nobody else bears any: states that differ in names are one. */
inline rename() {
	if
	:: rec.there && !net.there && !inCopy(rec.wid) && w[1].wid + w[2].wid + w[3].wid + exp[1] + exp[2] + exp[3] == 0 && !inCopy(1) -> rec.wid = 1
	:: else
	fi
}

/* leaves is the end of an attempt. What cannot matter any more is forgotten: it would only make equal states differ. */
inline leaves(t) {
	done[t] = 1; reads[t] = 0; told[t] = 0; aborting[t] = 0; parent[t] = 0;
	forgetWrite(t);
#if LOSSES == 0
	if
	:: rec.st[t] != Starting && phase[t] < Lapsed -> phase[t] = Lapsed
	:: else
	fi;
	if
	:: rec.by != 0 && !U(rec, t) -> answered[t] = 0; silent[t] = 0
	:: else
	fi;
	if
	:: up[t] == Never -> up[t] = Unsent
	:: else
	fi
#endif
}

/* concludes is what a gateway decides to write of its attempt's end. */
inline concludes(t, out, lingers, contradicted) {
	contra = 0; before = comesBack(t);
	decide(t, out, out == Unsure && lingers);
	/* what the store lost comes back where nothing speaks against it, and never what its gateway saw decided */
	assert(!before || eff != EffLost);
	assert(!recovers || undecided(t));
	contradicted = contra; contra = 0; before = 0
}

/* learns is what it knows of the record once that says so. */
inline learns(t) {
	if
	:: rec.there && rec.st[t] != No -> remember(t)
	:: else
	fi;
#ifdef BREAK_DOUBT_IS_DONE
	if
	:: nx -> acknowledge()
	:: else
	fi
#else
	/* what is there already, and was not acknowledged, is confirmed */
	if
	:: rec.there -> acknowledge()
	:: else
	fi
#endif
}

#ifdef FAILOVER
#define tells(t) told[t] = 1
#else
#define tells(t) skip
#endif

inline renews() {
	if
	:: v == EffRenewed -> phase[t] = Fresh
	:: else
	fi
}

/* keepId leaves nothing of a write that is over but whose job it was. */
inline keepId(t) { n = w[t].id; clear(w[t]); w[t].id = n; n = 0; exp[t] = 0; rename() }

inline decideReply(t, first) {
	recovers = 0;
	judge(rec, t, first);
	if
	:: verdict == Start || verdict == Sibling ->
		exp[t] = rec.wid; phase[t] = Fresh;
		set(x, rec); start(t); draw(); set(w[t], x)
	:: verdict == Own -> set(w[t], rec)
	:: verdict == OwnNotLive -> set(w[t], rec); exp[t] = 0
	:: verdict == Replay -> assert(rec.input == input[t]);
#ifndef BREAK_REPLAYS_UNACKNOWLEDGED
		acknowledge();
#endif
		give(rec.result)
	:: verdict == Wait -> reads[t] = 1; assert(rec.input == input[t]); forgetWrite(t)
#ifdef BREAK_LOST_IS_CREATED
	:: verdict == RecordLost -> creates_(t); verdict = Start
#endif
	:: else
	fi
}

#ifdef BREAK_FAILOVER_FROM_UNKNOWN
#define mayFollow true
#else
#define mayFollow (!lingers) /* its client was told */
#endif
#define comes(t) (request(t) && (t == 1 || !request(t-1) || begun[t-1]))
inline creates_(t) {
	begun[t] = 1;
	clear(x);
	x.there = 1; x.id = t; x.input = input[t];
	start(t); draw();
	set(w[t], x); exp[t] = 0
}

/* claims sends a claim, whose answer is judged at once. */
inline claims(t, v) {
	recovers = 0;
	put(w[t], exp[t]);
	if
#ifdef BREAK_SHORT_CLAIM_IS_RUN
	:: ok -> v = Own
#else
	:: ok -> v = Own; acknowledge()
#endif
#ifdef BREAK_REFUSED_CLAIMS_AGAIN
	:: else -> reads[t] = exp[t] != 0; decideReply(t, 1); v = verdict
#else
	:: else -> reads[t] = exp[t] != 0; decideReply(t, exp[t] == 0); v = verdict
#endif
	fi
}

proctype Attempt(byte t) {
	byte v;       /* verdict, or effect */
	byte out;     /* what is being reported */
	byte f;       /* the attempt that follows */
	bit resends, lingers, contradicted, swapping;

	{
	skip;
end:
	if
	:: landing
	/* a fresh request's first claim; that requests come in the order of their names is a matter of names */
	:: d_step { comes(t) -> creates_(t); claims(t, v) };
		goto judged
#if FAULTS > 0
	:: d_step { comes(t) && canFail -> creates_(t); onItsWay(w[t], exp[t], t); resends = 1 };
		goto doubts
#endif
	:: go[t] == Claimed -> goto dispatch
	:: go[t] == Doubtful -> goto aborts
#ifdef RACING
	:: go[t] == Races -> goto race
#endif
	fi;

claim:
	if
	:: landing
	:: d_step { true -> claims(t, v) };
judged:
		if
		:: v == Own -> goto dispatch
		:: v == OwnNotLive -> goto aborts
		:: v == Start || v == Sibling -> resends = (FAULTS > 0); goto claim
		:: v == Wait -> goto waits
		:: else -> goto over
		fi
#if FAULTS > 0
	:: d_step { canFail -> onItsWay(w[t], exp[t], t) };
doubts:
		if
		:: resends -> resends = 0; goto claim
#ifdef BREAK_AMBIGUOUS_IS_CLAIMED
		:: goto dispatch
#elif defined(BREAK_AMBIGUOUS_IS_LEFT)
		:: goto over
#else
		:: goto aborts
#endif
		fi
#endif
	fi;

waits:
	if
	:: landing
	:: d_step { !(rec.there && running(rec)) -> decideReply(t, 0); v = verdict }
	fi;
	if
	:: v == Start || v == Sibling -> resends = (FAULTS > 0); goto claim
	:: else -> goto over
	fi;

#ifdef RACING
	/* a sibling of the request's own attempt parent[t] */
race:
	if
	:: landing
	:: d_step {
		v = 0;
		if
#ifdef BREAK_RACES_WHAT_IS_OVER
		:: rec.there && rec.id == w[parent[t]].id && room(rec) && rec.st[t] == No ->
#else
		:: rec.there && rec.id == w[parent[t]].id && U(rec, parent[t]) && rec.by == 0 && room(rec) && rec.st[t] == No ->
#endif
			exp[t] = rec.wid; set(x, rec); start(t); draw(); set(w[t], x); v = Start; resends = (FAULTS > 0)
		:: rec.there && rec.st[t] != No -> decideReply(t, 0); v = verdict
		:: else
		fi
	}
	fi;
	if
	:: v == Own -> goto dispatch
	:: v == OwnNotLive -> goto aborts
	:: v == Start -> skip
	:: else -> goto over
	fi;
races:
	if
	:: landing
	:: d_step { recovers = 0; put(w[t], exp[t]); v = ok; if :: ok -> acknowledge() :: else fi };
		if
		:: v -> goto dispatch
		:: else -> goto race
		fi
#if FAULTS > 0
	:: d_step { canFail -> onItsWay(w[t], exp[t], t) };
		if
		:: resends -> resends = 0; goto races
		:: goto aborts
		fi
#endif
	fi;
#endif

	/* the last statement before the provider's chain */
dispatch:
	if
	:: landing
#ifdef BREAK_DISPATCHES_LATE
	:: d_step { true ->
#else
	:: d_step { phase[t] == Fresh ->
#endif
		/* the fifth invariant */
		assert(applied[t] && !aborting[t] && up[t] == Unsent);
		assert(lossy || MAX > 0 || (rec.there && rec.st[t] == Starting));
		up[t] = May; told[t] = 0;
#ifdef KEEP_LAST
		set(last[t], w[t]);
#endif
		keepId(t)
	   }
	:: d_step { phase[t] != Fresh -> exp[t] = 0 };
		goto aborts
	fi;

upstream:
	if
	:: landing
	:: d_step { up[t] == Executed -> out = Final; answered[t] = 1 }
	:: d_step { up[t] == Never -> out = ProvenFail };
#ifdef FAILOVER
		if
		:: d_step {
			follower != 0 && mayFollow -> f = follower; begun[f] = 1; parent[f] = t
		   };
			goto failover
		:: skip
		fi
#endif
	:: d_step { up[t] != Unsent -> out = Unsure; silent[t] = 1; lingers = 0 } /* cut: nobody will ever hear of it */
	:: d_step { !lingers -> lingers = 1; tells(t); out = Unsure } /* the timeout; it listens on */
	:: d_step { !lingers && renewals > 0 -> renewals--; out = Running }
#ifdef RACING
	:: d_step { !lingers && follower != 0 -> f = follower; parent[f] = t; go[f] = Races; begun[f] = 1; f = 0 };
		goto upstream
#endif
	fi;
#ifdef BREAK_TELLS_FIRST
	if
	:: d_step { out == Final && !lingers -> giveOwn(t) }
	:: else
	fi;
#endif
	contradicted = 0;

	/* the report: decided on the record that is there, then swapped for it */
decides:
	if
	:: landing
#ifdef SPLIT
	/* between the decision and the swap anything can happen */
	:: d_step {
		concludes(t, out, lingers, contradicted);
		if
		:: nx -> draw(); exp[t] = (creates -> 0 : rec.wid); set(w[t], x); swapping = 1
		:: else -> swapping = 0; learns(t)
		fi;
		v = eff; recovers = 0
	   };
		if
		:: d_step { swapping -> put(w[t], exp[t]); swapping = !ok; if :: ok -> learns(t); renews() :: else fi };
			if
			:: swapping -> goto decides
			:: else
			fi
		:: !swapping
		fi
#else
	/* a swap that is refused is decided anew, so that deciding and swapping are one step */
	:: d_step {
		concludes(t, out, lingers, contradicted);
		if
		:: nx -> draw(); put(x, (creates -> 0 : rec.wid))
		:: else
		fi;
		learns(t);
		v = eff; recovers = 0;
		renews()
	   }
#if FAULTS > 0
	:: d_step {
		canFail -> concludes(t, out, lingers, contradicted);
		if
		:: nx -> draw(); onItsWay(x, (creates -> 0 : rec.wid), t)
		:: else -> faults--
		fi;
		v = EffNone; recovers = 0
	   };
		if
		:: out == Running -> skip /* the next renewal will do */
		:: else -> goto decides
		fi
#endif
#endif
	fi;
	d_step {
		exp[t] = 0; swapping = 0;
		if
		:: w[t].there -> keepId(t)
		:: else
		fi;
		/* somebody who decided wrongly is told */
		assert(!(rec.there && (out == Final && rec.res[t] != 0 || out == ProvenFail && rec.res[t] == Succeeded)) || contradicted || lossy);
		/* its job is the one that it was claimed for */
		assert(!(rec.there && rec.st[t] != No) || rec.id == w[t].id);
		contradicted = 0;
		if
		:: out == Final && !lingers && (v == EffWon || v == EffAlready) -> giveOwn(t)
		:: out == Final && !lingers && !(v == EffWon || v == EffAlready) && rec.there && rec.by != 0 && rec.id == w[t].id -> give(rec.result)
		:: else
		fi;
		v = 0
	};
	if
	:: out == Running || (out == Unsure && lingers) -> out = 0; goto upstream
	:: else -> goto over
	fi;

	/* the failure and the next attempt's start in one write */
#ifdef FAILOVER
failover:
	if
	:: landing
	:: d_step {
		contra = 0; starts = 0;
		if
		:: rec.there && rec.st[t] != No && rec.st[f] == No ->
			set(x, rec); before = x.st[t];
			report(t, ProvenFail, 0);
#ifdef BREAK_FAILOVER_FROM_UNKNOWN
			starts = (eff == EffFailed && x.by == 0 && !(unresolved(x) && count(x) >= MAX));
#else
			starts = (eff == EffFailed && before == Starting && x.by == 0 && !(unresolved(x) && count(x) >= MAX));
#endif
			if
			:: starts -> phase[f] = Fresh; start(f); draw(); exp[f] = rec.wid; set(w[f], x)
			:: else
			fi
		:: else
		fi;
		v = starts; contra = 0; starts = 0; resends = (FAULTS > 0);
		out = ProvenFail
	}
	fi;
	if
	:: !v -> d_step { begun[f] = !request(f); forgetWrite(f); f = 0; resends = 0; parent[f] = 0 }; goto decides
	:: else
	fi;
fails:
	if
	:: landing
	:: d_step {
		recovers = 0; put(w[f], exp[f]); v = ok;
		if
		:: ok -> acknowledge(); go[f] = Claimed; begun[f] = 1
		:: else ->
			if
			:: rec.there && rec.st[f] != No ->
				/* an earlier send has landed */
				judge(rec, f, 0);
				set(w[f], rec);
				v = 1; begun[f] = 1;
				if
				:: verdict == Own -> go[f] = Claimed
				:: else -> go[f] = Doubtful
				fi
			:: else -> forgetWrite(f)
			fi
		fi
	   };
		if
		:: v -> goto over
		:: else -> goto failover
		fi
#if FAULTS > 0
	:: d_step { canFail -> onItsWay(w[f], exp[f], f) };
		if
		:: resends -> resends = 0; goto fails
		:: d_step { go[f] = Doubtful; begun[f] = 1 }; goto over
		fi
#endif
	fi;
#endif

	/* nothing was sent, and the record comes to say so */
aborts:
	aborting[t] = 1;
insists:
	if
	:: landing
	:: d_step {
		abort(t); contra = 0;
		if
		:: nx -> draw(); put(x, (creates -> 0 : rec.wid)); acknowledge()
		:: else
		fi;
		n = 0; definite[t] = 1
	   }
#if FAULTS > 0
	:: d_step {
		canFail -> abort(t); contra = 0; n = 0;
		if
		:: nx -> draw(); onItsWay(x, (creates -> 0 : rec.wid), t)
		:: else
		fi
	   };
		goto insists
#endif
	fi;

over:
	if
	:: landing
	:: d_step { leaves(t); v = 0; out = 0; f = 0; lingers = 0; resends = 0; swapping = 0; contradicted = 0 }
	fi
	}
	unless { dead[gateway(t)] }
}

/* ---- everything else: upstreams, time, the network, operators, the store ---- */

#define executed(i) (up[i] == Executed && phase[i] != Old)
inline executes(i) {
	up[i] = Executed;
	/* one intent, one effect */
	assert(executed(1) + executed(2) + executed(3) <= 1 || MAX > 0 || wrong || excused)
}

/* A right decision: what never executed, and never will, has failed. */
#ifdef WRONG
#define right(i, as) true
#else
#define right(i, as) (as == Succeeded -> up[i] == Executed : up[i] == Unsent || up[i] == Never)
#endif
#ifdef BREAK_RESOLVES_STARTING
#define resolvable(i) (rec.there && rec.by == 0 && U(rec, i))
#elif defined(BREAK_RESOLVES_WHAT_IS_PROVEN)
#define resolvable(i) (rec.there && rec.by == 0 && (rec.st[i] == Unknown || rec.st[i] == Failed))
#else
#define resolvable(i) (rec.there && rec.by == 0 && rec.st[i] == Unknown)
#endif
inline resolve(i, as) {
	set(x, rec);
	x.st[i] = as; x.res[i] = as;
	if
	:: as == Succeeded -> takeSlot(i, Operators)
	:: else -> fixExpiry()
	fi;
	wrong = wrong || !(as == Succeeded -> up[i] == Executed : up[i] == Unsent || up[i] == Never);
	ops--; draw(); put(x, rec.wid); acknowledge()
}

inline ages(i) {
	if
	:: rec.st[i] != No -> phase[i] = Old
	:: else
	fi
}
inline goes() {
	gone--; given = 0;
	ages(1); ages(2); ages(3);
	clear(net); netExp = 0; netOf = 0; netBack = 0; /* nothing is on its way as long as that */
	clear(rec)
}
#ifdef BREAK_FORGET_WHILE_LISTENING
#define mayReport(i) (rec.st[i] == Starting)
#else
#define mayReport(i) (rec.st[i] == Starting || (rec.st[i] != No && !rec.ended[i] && phase[i] < Over))
#endif
#define speaks(i) (rec.st[i] != No && up[i] != Unsent && !rec.ended[i] && !done[i])
#ifdef BREAK_UNRESOLVED_EXPIRES
#define expired (rec.there && !running(rec))
#else
#define expired (rec.there && rec.expires)
#endif

inline crash(i, g) {
	if
	:: gateway(i) == g && !done[i] && (begun[i] || request(i)) ->
		done[i] = 1; silent[i] = 1; begun[i] = 1; forgetWrite(i)
	:: else
	fi
}

#ifdef CALM
#define passes(i) done[i]
#else
#define passes(i) true
#endif
#define time(i) \
	:: d_step { \
		begun[i] && passes(i) && phase[i] < Lapsed && (rec.st[i] == Starting || up[i] == Unsent && !done[i] && !aborting[i]) -> \
		phase[i] = (phase[i] == Fresh && up[i] == Unsent && !done[i] && !aborting[i] -> HalfOver : Lapsed) \
	   }
#if GONE > 0
#define late(i) \
	:: d_step { begun[i] && phase[i] == Lapsed && (done[i] || aborting[i]) && gone > 0 -> phase[i] = Over }
#else
#define late(i)
#endif
#define upstream(i) \
	:: d_step { up[i] == May -> executes(i) } \
	:: d_step { up[i] == May -> up[i] = Never }
#define operator(i, as) \
	:: d_step { ops > 0 && resolvable(i) && right(i, as) -> resolve(i, as) }

inline settled(i) {
	assert(done[i] || !begun[i] || !request(i) && go[i] == Idle);
	assert(rec.st[i] != Starting || rec.by != 0);
	/* nothing is left unknown but what nobody can know */
	assert(rec.by != 0 || rec.st[i] != Unknown || silent[i] || lossy);
	/* an answer that came is not lost: it is the result, or discarded as another one is, or nobody wanted it */
	assert(!answered[i] || silent[i] || rec.by != 0 || phase[i] == Old || lossy || wrong);
	assert(!answered[i] || silent[i] || rec.st[i] == Succeeded || rec.st[i] == Discarded || phase[i] == Old || lossy);
	assert(!applied[i] || rec.there || phase[i] == Old || lossy)
}

active proctype World() {
	d_step {
#ifdef OTHER_INPUT
		input[3] = 1;
#endif
		skip
	};
	run Attempt(1); run Attempt(2); run Attempt(3);
	do
	:: landing
	upstream(1)
	upstream(2)
	upstream(3)
	time(1)
	time(2)
	time(3)
	late(1)
	late(2)
	late(3)
	/* a sweeper, or anybody who reads, writes down that a lease has lapsed */
	:: d_step {
		rec.there && rec.by == 0 && ((rec.st[1] == Starting && phase[1] >= Lapsed) ||
			(rec.st[2] == Starting && phase[2] >= Lapsed) || (rec.st[3] == Starting && phase[3] >= Lapsed)) ->
		set(x, rec); lapse(); draw(); put(x, rec.wid); acknowledge()
	   }
#if OPS > 0
	operator(1, Succeeded)
	operator(1, Failed)
	operator(1, Cancelled)
	operator(2, Succeeded)
	operator(2, Failed)
	operator(2, Cancelled)
#ifndef TWO
	operator(3, Succeeded)
	operator(3, Failed)
	operator(3, Cancelled)
#endif
	:: ops > 0 -> ops = 0 /* nobody decides any more */
#endif
#if FAULTS > 0
	:: d_step {
		net.there ->
		recovers = netBack;
		put(net, netExp);
		recovers = 0; clear(net); netExp = 0; netOf = 0; netBack = 0
	   }
	:: d_step { net.there -> clear(net); netExp = 0; netOf = 0; netBack = 0 } /* it is lost */
#endif
#if CRASHES > 0
	:: d_step { crashes > 0 && !dead[1] -> crashes--; dead[1] = 1; crash(1, 1); crash(2, 1); crash(3, 1) }
	:: d_step { crashes > 0 && !dead[2] -> crashes--; dead[2] = 1; crash(1, 2); crash(2, 2); crash(3, 2) }
#endif
#if GONE > 0
	:: d_step { gone > 0 && expired -> assert(!unresolved(rec)); goes() }
	:: d_step {
		gone > 0 && rec.there && rec.by != 0 && !mayReport(1) && !mayReport(2) && !mayReport(3) ->
		/* nobody has anything to say any more of an attempt whose job is forgotten */
		assert(!speaks(1) && !speaks(2) && !speaks(3)); goes()
	   }
#endif
#if LOSSES > 0
	:: d_step { losses > 0 && copy.wid != rec.wid -> set(copy, rec) }
	:: d_step {
		losses > 0 && copy.wid != rec.wid ->
		losses--; lossy = 1; set(rec, copy);
#ifndef DURABLE
		if
		:: rec.by == 0 -> given = 0
		:: else
		fi
#endif
	   }
#endif
	:: timeout -> break
	od;
	skip;
	d_step { settled(1); settled(2); settled(3) }
}
