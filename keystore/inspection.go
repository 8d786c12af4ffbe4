package keystore

import (
	"context"
	"time"
)

// Inspector is a [Store] that can find out what it really runs on, and what that
// means for what is promised.
type Inspector interface {
	// Inspect looks at what there is. That some of it is not told is no error; an
	// error means that nothing could be looked at.
	Inspect(ctx context.Context) (Inspection, error)
}

// Inspection is what was found.
type Inspection struct {
	At time.Time
	// About describes what the store runs on, in a line for each part of it.
	About    []string
	Findings []Finding
	// Bytes is how much the store's file, or the memory of its servers, takes; zero
	// where that is not told.
	Bytes int64
}

// Worst returns the severity of the worst finding, -1 without any.
func (i Inspection) Worst() Severity {
	worst := Severity(-1)
	for _, f := range i.Findings {
		worst = max(worst, f.Severity)
	}
	return worst
}

// Severity says how bad a finding is.
type Severity int

// The severities.
const (
	// Note: worth knowing; nothing that was promised is at risk by it.
	Note Severity = iota
	// Warning: a failure that this setting does not survive can lose a job.
	Warning
	// Danger: jobs get lost in everyday operation, without any failure, or nothing
	// works at all.
	Danger
)

func (s Severity) String() string {
	switch s {
	case Note:
		return "note"
	case Warning:
		return "warning"
	case Danger:
		return "danger"
	}
	return "none"
}

// Finding is something about a store that matters for what can be promised.
type Finding struct {
	// Code is a stable name, such as eviction.
	Code     string
	Severity Severity
	// Loses says that a job can be lost by it that the store has acknowledged.
	Loses bool
	// Server is the address of the server that it is about; empty where it is about
	// the store as a whole.
	Server string
	// Found says what there is, Risk what can be lost by that, and Remedy what to
	// set instead.
	Found, Risk, Remedy string
}

func (f Finding) String() string {
	text := f.Found
	if f.Server != "" {
		text = f.Server + ": " + text
	}
	for _, more := range []string{f.Risk, f.Remedy} {
		if more != "" {
			text += "; " + more
		}
	}
	return text
}

// SameAs reports whether a finding tells an operator nothing that the other one did
// not. What is measured in it may differ.
func (f Finding) SameAs(other Finding) bool {
	f.Found, other.Found = "", ""
	return f == other
}

// FindingUnreachable is the code of a finding that a server of several could not be
// looked at. What was last known of that server stands.
const FindingUnreachable = "unreachable"
