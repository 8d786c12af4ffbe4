//go:build !race

package e2e

// raceDetector says whether the tests, and so the gateways that they run, were
// built with the race detector.
const raceDetector = false
