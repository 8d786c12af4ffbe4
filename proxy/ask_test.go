package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAskReturnsWholeAnswersOnly(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	type handler = func(http.ResponseWriter, *http.Request) error
	for name, c := range map[string]struct {
		handle handler
		err    error
	}{
		"an answer": {func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("A", "b")
			w.WriteHeader(404)
			_, err := w.Write([]byte("0123456789"))
			return err
		}, nil},
		"nothing": {func(http.ResponseWriter, *http.Request) error { return nil }, ErrLookupSilent},
		"an interim answer only": {func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(103)
			return nil
		}, ErrLookupSilent},
		"an error": {func(http.ResponseWriter, *http.Request) error { return broken }, broken},
		"an error after an answer": {func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(200)
			return broken
		}, broken},
		"a panic after an answer": {func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(200)
			panic(http.ErrAbortHandler)
		}, ErrLookupCut},
		"less than announced": {func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Length", "11")
			_, err := w.Write([]byte("0123456789"))
			return err
		}, ErrLookupCut},
		"too much": {func(w http.ResponseWriter, r *http.Request) error {
			for range 3 {
				if _, err := w.Write([]byte("012345")); err != nil {
					return err
				}
			}
			return context.Cause(r.Context())
		}, ErrLookupLarge},
		"switched protocols": {func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(101)
			return nil
		}, ErrLookupCut},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer, err := Ask(c.handle, httptest.NewRequest(http.MethodGet, "/", nil), 10)
			if !errors.Is(err, c.err) || (err == nil) != (answer != nil) {
				t.Fatalf("got %+v, %v", answer, err)
			}
			if err == nil && (answer.Status != 404 || string(answer.Body) != "0123456789" || answer.Header["A"] == nil || answer.Size != 10) {
				t.Errorf("got %+v", answer)
			}
		})
	}
}

// Many a handler takes the end of its context for the end of its answer.
func TestAskBelievesNoAnswerAfterTheEnd(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)
	var late http.ResponseWriter
	answer, err := Ask(func(w http.ResponseWriter, _ *http.Request) error {
		late = w
		cancel()
		w.WriteHeader(404)
		return nil
	}, r, 10)
	if answer != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("got %+v, %v", answer, err)
	}
	if _, err := late.Write([]byte(strings.Repeat("x", 20))); err == nil {
		t.Error("a late write is taken")
	}
}
