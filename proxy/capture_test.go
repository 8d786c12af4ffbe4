package proxy

import (
	"strconv"
	"testing"
)

// An upstream can say a status that no answer can have. What it meant is unknown:
// nothing is made of it that anybody would be given for an answer.
func TestStatusThatNoAnswerHas(t *testing.T) {
	for _, status := range []int{0, 42, 1000} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, f *fixture) {
				f.with(map[string][]script{"": {says(status, "something went wrong")}})
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				f.wantAttempts(" unknown")
			})
		})
	}
}
