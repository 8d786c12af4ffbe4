package history

import (
	"fmt"
	"time"
)

const second = time.Second

// told is a request that was answered with an execution's answer.
func told(began, ended time.Duration, job, answer string) Request {
	return Request{Key: "k", Asked: "a", Began: began, Ended: ended, Heard: true, Status: 200, Job: job, Answer: answer}
}

// refused is a request that was refused by the gateway.
func refused(began, ended time.Duration, status int, code, job string) Request {
	return Request{Key: "k", Asked: "a", Began: began, Ended: ended, Heard: true, Status: status, Code: code, Job: job}
}

func silence(began, ended time.Duration) Request {
	return Request{Key: "k", Asked: "a", Began: began, Ended: ended}
}

func did(at time.Duration, job string, attempt int, answer string) Execution {
	return Execution{Key: "k", Asked: "a", At: at, Job: job, Attempt: attempt, Token: fmt.Sprintf("%s/%d/%s", job, attempt, answer), Answer: answer}
}

func (r Request) with(change func(*Request)) Request {
	change(&r)
	return r
}

func (e Execution) with(change func(*Execution)) Execution {
	change(&e)
	return e
}

func last(r *Request)        { r.Last = true }
func unrecorded(r *Request)  { r.Unrecorded = true }
func otherwise(r *Request)   { r.Asked = "b" }
func racing(e *Execution)    { e.Racing = true }
func noEffect(e *Execution)  { e.Refused = true }
func brief(e *Execution)     { e.Retention = 10 * second }
func another(e *Execution)   { e.Asked = "b" }
func nobody(e *Execution)    { e.Job, e.Token, e.Attempt = "", "", 0 }
func sameToken(e *Execution) { e.Token = "t" }

func decided(began, ended time.Duration, job string, attempt int, as, answer string) Decision {
	return Decision{Job: job, Attempt: attempt, As: as, Answer: answer, Began: began, Ended: ended}
}

// once is a history in which all is well.
func once() History {
	return History{
		Requests:   []Request{told(1*second, 2*second, "j", "x"), told(3*second, 4*second, "j", "x"), told(5*second, 6*second, "j", "x").with(last)},
		Executions: []Execution{did(1500*time.Millisecond, "j", 1, "x")},
	}
}

// twice is one in which a key was executed two times, by the same job.
func twice() History {
	h := once()
	h.Requests = append([]Request{silence(0, 10*second)}, h.Requests...)
	h.Executions = []Execution{did(1*second, "j", 1, "w"), did(1500*time.Millisecond, "j", 2, "x")}
	return h
}

// lost is one in which the second execution knows nothing of the first, whose answer
// was told.
func lost() History {
	return History{
		Requests: []Request{
			told(1*second, 2*second, "i", "w"), told(20*second, 21*second, "j", "x"), told(22*second, 23*second, "j", "x").with(last),
		},
		Executions: []Execution{did(1500*time.Millisecond, "i", 1, "w"), did(20500*time.Millisecond, "j", 1, "x")},
	}
}

// unsettled is one in which an answer that was told is unknown later.
func unsettled() History {
	return History{
		Requests: []Request{
			told(1*second, 2*second, "j", "x"), refused(20*second, 21*second, 504, "outcome-unknown", "j"),
			refused(22*second, 23*second, 504, "outcome-unknown", "j").with(last),
		},
		Executions: []Execution{did(1500*time.Millisecond, "j", 1, "x")},
		Unknown:    map[string]bool{"j": true},
	}
}

var failover = []Span{{From: 10 * second, To: 12 * second}}
