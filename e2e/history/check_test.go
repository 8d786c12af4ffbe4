package history

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		history   History
		change    func(h *History)
		violation string // "": none
		permitted map[string]int
	}{
		"all is well": {history: once()},
		"nothing":     {},

		"executed twice": {history: twice(), violation: Twice},
		"executed twice, by another job": {
			history: lost(), change: func(h *History) { h.Requests = append(h.Requests[1:], silence(1*second, 2*second)) }, violation: Twice,
		},
		"after a proven failure": {
			history: twice(), change: func(h *History) { h.Executions[0] = h.Executions[0].with(noEffect) }, permitted: map[string]int{Failed: 1},
		},
		"with a proven failure, and yet too often": {
			history: twice(), change: func(h *History) {
				h.Executions = append(h.Executions, did(1*second, "j", 3, "v").with(noEffect))
			}, violation: Twice, permitted: map[string]int{Failed: 1},
		},
		"resolved as cancelled": {
			history: twice(), change: func(h *History) {
				h.Decisions = []Decision{decided(1100*time.Millisecond, 1200*time.Millisecond, "j", 1, "cancelled", "")}
			}, permitted: map[string]int{Decided: 1},
		},
		"resolved as cancelled, and sent only then": {
			history: twice(), change: func(h *History) {
				h.Executions[0].At = 5 * second
				h.Decisions = []Decision{decided(1100*time.Millisecond, 1200*time.Millisecond, "j", 1, "failed", "")}
			}, permitted: map[string]int{Decided: 1},
		},
		"resolved too late": {
			history: twice(), change: func(h *History) {
				h.Decisions = []Decision{decided(3*second, 4*second, "j", 1, "cancelled", "")}
			}, violation: Twice,
		},
		"another attempt was resolved": {
			history: twice(), change: func(h *History) {
				h.Executions = append(h.Executions, did(1700*time.Millisecond, "j", 3, "y"))
				h.Decisions = []Decision{decided(1100*time.Millisecond, 1200*time.Millisecond, "j", 1, "cancelled", "")}
			}, violation: Twice, permitted: map[string]int{Decided: 1},
		},
		"resolved as succeeded": {
			history: twice(), change: func(h *History) {
				h.Decisions = []Decision{decided(1100*time.Millisecond, 1200*time.Millisecond, "j", 1, "succeeded", "w")}
			}, violation: Twice,
		},
		"racing": {
			history: twice(), change: func(h *History) {
				h.Executions[0], h.Executions[1] = h.Executions[0].with(racing), h.Executions[1].with(racing)
			}, permitted: map[string]int{Racing: 1},
		},
		"expired": {
			history: lost(), change: func(h *History) {
				h.Executions[0], h.Executions[1] = h.Executions[0].with(brief), h.Executions[1].with(brief)
			}, permitted: map[string]int{Expired: 2}, // an execution, and an answer
		},
		"executed again before its time": {
			history: lost(), change: func(h *History) {
				h.Executions[0].Retention, h.Executions[1].Retention = time.Minute, time.Minute
			}, violation: Twice,
		},
		"expired by a clock that has jumped": {
			history: lost(), change: func(h *History) {
				h.Executions[0].Retention, h.Executions[1].Retention = time.Minute, time.Minute
				h.Jumps = []Jump{{0, 0}, {5 * second, time.Minute}}
			}, permitted: map[string]int{Expired: 2},
		},
		"expired by a clock whose jump was noticed late": {
			history: lost(), change: func(h *History) {
				h.Executions[0].Retention, h.Executions[1].Retention = time.Minute, time.Minute
				h.Jumps = []Jump{{0, -time.Minute}, {1 * second, 0}}
			}, permitted: map[string]int{Expired: 2},
		},
		"the clock has jumped long before": {
			history: lost(), change: func(h *History) {
				h.Executions[0].Retention, h.Executions[1].Retention = time.Minute, time.Minute
				h.Jumps = []Jump{{-2 * time.Minute, -time.Minute}, {-time.Minute, 0}}
			}, violation: Twice,
		},
		"the clock has jumped back": {
			history: lost(), change: func(h *History) {
				h.Executions[0].Retention, h.Executions[1].Retention = time.Minute, time.Minute
				h.Jumps = []Jump{{0, 0}, {5 * second, -30 * second}, {6 * second, 0}} // by too little
			}, violation: Twice,
		},
		"claim lost in a failover": {
			history: lost(), change: func(h *History) { h.Failovers = failover }, permitted: map[string]int{ClaimLost: 2},
		},
		"claim lost in a failover, of a durable store": {
			history: lost(), change: func(h *History) { h.Failovers, h.Durable = failover, true }, violation: Twice,
		},
		"claim lost beyond copies": {
			history: lost(), change: func(h *History) {
				h.Failovers, h.Durable = []Span{{From: 10 * second, To: 12 * second, Beyond: true}}, true
			}, permitted: map[string]int{BeyondCopies: 2},
		},
		"claim lost, and a failover beyond copies came later": {
			history: lost(), change: func(h *History) {
				h.Failovers, h.Durable = []Span{failover[0], {From: 30 * second, To: 32 * second, Beyond: true}}, true
			}, violation: Twice,
		},
		"claim lost in a failover that was over before": {
			history: lost(), change: func(h *History) { h.Failovers = []Span{{From: 0, To: 1 * second}} }, violation: Twice,
		},
		"second claim lost in a failover": {
			history: lost(), change: func(h *History) {
				h.Executions = append(h.Executions, did(1100*time.Millisecond, "i", 1, "v").with(noEffect))
				h.Executions[0].Attempt, h.Executions[1].Attempt = 2, 2
				h.Executions[1].Job, h.Requests[1].Job, h.Requests[2].Job = "i", "i", "i"
				h.Failovers = failover
			}, permitted: map[string]int{ClaimLost: 2, Failed: 1},
		},
		"one attempt, sent twice": {
			history: twice(), change: func(h *History) {
				for i := range h.Executions {
					h.Executions[i] = h.Executions[i].with(sameToken).with(racing)
				}
			}, violation: Resent, permitted: map[string]int{Racing: 1},
		},
		"executed for nobody": {
			history: once(), change: func(h *History) { h.Executions[0] = h.Executions[0].with(nobody) }, violation: Unclaimed,
		},
		"executed before it was asked for": {
			history: once(), change: func(h *History) { h.Executions[0].At = 0 }, violation: Unclaimed,
		},
		"executed, and refused as if not": {
			history: once(), change: func(h *History) { h.Requests[0] = refused(1*second, 2*second, 503, "store-unavailable", "") }, violation: Unclaimed,
		},
		"executed without an effect, and refused": {
			history: once(), change: func(h *History) {
				h.Executions[0] = h.Executions[0].with(noEffect)
				h.Requests = []Request{refused(1*second, 2*second, 503, "store-unavailable", "j")}
			},
		},

		"two answers for one job": {
			history: twice(), change: func(h *History) {
				h.Executions[0] = h.Executions[0].with(racing)
				h.Executions[1] = h.Executions[1].with(racing)
				h.Requests[1].Answer = "w"
			}, violation: Differ, permitted: map[string]int{Racing: 1},
		},
		"one answer with two statuses": {
			history: once(), change: func(h *History) { h.Requests[1].Status = 201 }, violation: Differ,
		},
		"the other answer was not recorded": {
			history: twice(), change: func(h *History) {
				h.Decisions = []Decision{decided(1100*time.Millisecond, 1200*time.Millisecond, "j", 1, "cancelled", "")}
				h.Requests[1] = told(1*second, 1050*time.Millisecond, "j", "w").with(unrecorded)
			}, permitted: map[string]int{Decided: 1, Unrecorded: 1},
		},
		"an answer that nobody has given": {
			history: once(), change: func(h *History) { h.Requests[1].Answer = "y" }, violation: Foreign,
		},
		"an answer that an operator has given": {
			history: once(), change: func(h *History) {
				h.Executions = nil
				h.Decisions = []Decision{decided(0, 1*second, "j", 1, "succeeded", "x")}
			},
		},
		"the answer of another job": {
			history: once(), change: func(h *History) { h.Requests[1].Job = "i" }, violation: Foreign,
		},
		"the answer to something else": {
			history: once(), change: func(h *History) { h.Requests[1] = h.Requests[1].with(otherwise) }, violation: Foreign,
		},
		"refused as something else": {
			history: once(), change: func(h *History) {
				h.Requests = append(h.Requests, refused(3*second, 4*second, 409, "key-reused", "j").with(otherwise))
			},
		},
		"refused as something else, and it is not": {
			history: once(), change: func(h *History) {
				h.Requests = append(h.Requests, refused(3*second, 4*second, 409, "key-reused", "j"))
			}, violation: Contradicted,
		},
		"one job for two things": {
			history: twice(), change: func(h *History) {
				h.Executions[0] = h.Executions[0].with(another).with(noEffect)
				h.Requests = append(h.Requests, silence(0, 10*second).with(otherwise))
			}, violation: Foreign, permitted: map[string]int{Failed: 1},
		},

		"a recorded answer is another one later": {
			history: lost(), change: func(h *History) {
				h.Executions[0] = h.Executions[0].with(racing)
				h.Executions[1] = h.Executions[1].with(racing)
			}, violation: Contradicted, permitted: map[string]int{Racing: 1},
		},
		"a recorded answer is unknown later": {history: unsettled(), violation: Contradicted},
		"a recorded answer is lost in a failover": {
			history: unsettled(), change: func(h *History) { h.Failovers, h.Durable = failover, true }, permitted: map[string]int{CommitLost: 1},
		},
		"an unrecorded answer is unknown later": {
			history: unsettled(), change: func(h *History) { h.Requests[0] = h.Requests[0].with(unrecorded) },
		},
		"a recorded answer is lost in a failover, and somebody decides otherwise": {
			history: unsettled(), change: func(h *History) {
				h.Failovers, h.Durable = failover, true
				h.Decisions = []Decision{decided(24*second, 25*second, "j", 1, "cancelled", "")}
				h.Executions = append(h.Executions, did(27*second, "j", 2, "y"))
				h.Requests = append(h.Requests, told(26*second, 28*second, "j", "y").with(last))
			}, permitted: map[string]int{CommitLost: 2, Decided: 1},
		},
		"a recorded answer is lost in a failover, and the race goes on": {
			history: unsettled(), change: func(h *History) {
				h.Failovers, h.Durable = failover, true
				h.Executions = append(h.Executions, did(27*second, "j", 2, "y").with(racing))
				h.Executions[0] = h.Executions[0].with(racing)
				h.Requests = append(h.Requests, told(26*second, 28*second, "j", "y").with(last))
			}, permitted: map[string]int{CommitLost: 2, Racing: 1},
		},
		"a recorded answer is not lost, and the race goes on": {
			history: unsettled(), change: func(h *History) {
				h.Executions = append(h.Executions, did(27*second, "j", 2, "y").with(racing))
				h.Executions[0] = h.Executions[0].with(racing)
				h.Requests = append(h.Requests, told(26*second, 28*second, "j", "y").with(last))
			}, violation: Differ,
		},
		"somebody decides otherwise on what was recorded": {
			history: once(), change: func(h *History) {
				h.Decisions = []Decision{decided(24*second, 25*second, "j", 1, "cancelled", "")}
				h.Executions = append(h.Executions, did(27*second, "j", 2, "y"))
				h.Requests = append(h.Requests, told(26*second, 28*second, "j", "y").with(last))
			}, violation: Differ, permitted: map[string]int{Decided: 1},
		},
		"a recorded answer, and the store is down": {
			history: once(), change: func(h *History) { h.Requests[1] = refused(3*second, 4*second, 503, "store-unavailable", "") },
		},
		"a recorded answer, and an attempt runs": {
			history: once(), change: func(h *History) { h.Requests[1] = refused(3*second, 4*second, 409, "in-flight", "j") }, violation: Contradicted,
		},
		"an attempt runs, and its answer has not been heard yet": {
			history: once(), change: func(h *History) { h.Requests[1] = refused(1500*time.Millisecond, 3*second, 409, "in-flight", "j") },
		},
		"a body did not fit": {
			history: once(), change: func(h *History) {
				h.Requests[2] = refused(5*second, 6*second, 410, "result-not-kept", "j").with(last)
				h.Full = []Span{{From: 1 * second, To: 2 * second}}
			}, permitted: map[string]int{NotKept: 1},
		},
		"a body is gone that did fit": {
			history: once(), change: func(h *History) { h.Requests[2] = refused(5*second, 6*second, 410, "result-not-kept", "j").with(last) }, violation: Contradicted,
		},

		"a key is stuck": {
			history: once(), change: func(h *History) {
				h.Requests = []Request{silence(1*second, 2*second), refused(5*second, 6*second, 409, "in-flight", "j").with(last)}
			}, violation: Stuck,
		},
		"a key is blocked, and its job is not unknown": {
			history: unsettled(), change: func(h *History) { h.Unknown, h.Requests[0] = nil, silence(1*second, 2*second) }, violation: Stuck,
		},
		"a key is blocked, and its job is unknown": {
			history: unsettled(), change: func(h *History) { h.Requests[0] = silence(1*second, 2*second) },
		},
		"a key has no answer in the end": {
			history: once(), change: func(h *History) { h.Requests[2] = silence(5*second, 6*second).with(last) }, violation: Stuck,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := c.history
			if c.change != nil {
				c.change(&h)
			}
			r := Check(&h)
			var kinds []string
			for _, v := range r.Violations {
				kinds = append(kinds, v.Kind)
			}
			switch {
			case c.violation == "" && len(kinds) > 0:
				t.Errorf("violations where there are none: %v", r.Violations)
			case c.violation != "" && !slices.Contains(kinds, c.violation):
				t.Errorf("not noticed: %s; noticed: %v", c.violation, r.Violations)
			}
			maps.DeleteFunc(r.Permitted, func(_ string, n int) bool { return n == 0 })
			if c.violation == "" && !maps.Equal(r.Permitted, c.permitted) {
				t.Errorf("permitted %v, want %v", r.Permitted, c.permitted)
			}
			for reason, n := range c.permitted {
				if r.Permitted[reason] < n {
					t.Errorf("permitted %v, want %v", r.Permitted, c.permitted)
				}
			}
			if line := h.Timeline("k"); (len(h.Requests) > 0) != strings.Contains(line, "request for") {
				t.Errorf("the timeline is %q", line)
			}
		})
	}
}

// Keys have nothing to do with each other.
func TestKeysAreApart(t *testing.T) {
	t.Parallel()
	h := once()
	for i, key := range []string{"l", "m"} {
		for _, r := range once().Requests {
			r.Key, r.Job, r.Answer = key, key, key
			h.Requests = append(h.Requests, r)
		}
		e := did(1500*time.Millisecond, key, 1, key)
		e.Key = key
		h.Executions = append(h.Executions, e)
		if i == 1 {
			e.Attempt, e.Answer, e.Token = 2, "again", "again"
			h.Executions = append(h.Executions, e)
		}
	}
	r := Check(&h)
	if len(r.Violations) != 1 || r.Violations[0].Key != "m" || r.Violations[0].Kind != Twice {
		t.Errorf("want one violation, of m, got %v", r.Violations)
	}
	if r.Keys != 3 || r.Requests != 9 || r.Answered != 9 || r.Executions != 4 {
		t.Errorf("counted %+v", r)
	}
}
