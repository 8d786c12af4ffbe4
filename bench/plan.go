package main

import (
	"fmt"
	"time"
)

// Sizes of answers.
const (
	small  = 1 << 10
	medium = 64 << 10
	large  = 1 << 20
)

// Kinds of load.
const (
	kindFresh   = "fresh"
	kindHot     = "replay, hot keys"
	kindCold    = "replay, cold keys"
	kindDoubled = "50 % duplicates"
	kindOneKey  = "a hot key"
	kindSteady  = "fresh at a fixed rate"
	hotKeys     = 100
	timesOneKey = 1000
	coldKeys    = 15_000 // more than the gateway keeps in memory by default
	warmUp      = 300 * time.Millisecond
	connsSteady = 256
	defaultRate = 1000
)

// cell is one comparison: what is sent, and to whom.
type cell struct {
	kind    string
	size    int
	conns   int
	targets []string
	rounds  int
	round   time.Duration
	rate    float64 // requests per second; zero: as fast as answers come
}

func (c *cell) name() string {
	if c.rate > 0 {
		return fmt.Sprintf("%s of %.0f per second, %d KiB", c.kind, c.rate, c.size>>10)
	}
	return fmt.Sprintf("%s, %d KiB, %d connections", c.kind, c.size>>10, c.conns)
}

// versus is what a target is compared with.
func (c *cell) versus(target string) string {
	switch target {
	case plainCaddy, staticCaddy, plainFiber, plainNode:
		return ""
	case fiberRedis:
		return plainFiber
	case nodeRedis:
		return plainNode
	}
	if c.replays() {
		return staticCaddy
	}
	return plainCaddy
}

func (c *cell) replays() bool { return c.kind == kindHot || c.kind == kindCold }

// keys are those of one round. Those of replays are the ones that were prepared.
func (c *cell) keys(prepared *known) keys {
	switch c.kind {
	case kindDoubled:
		return newAgain(2)
	case kindOneKey:
		return newAgain(timesOneKey)
	case kindHot, kindCold:
		return prepared
	}
	return newFresh()
}

func (c *cell) prepared() int {
	switch c.kind {
	case kindHot:
		return hotKeys
	case kindCold:
		return coldKeys
	}
	return 0
}

var (
	everybody = []string{plainCaddy, gatewayRedis, gatewayBolt, plainFiber, fiberRedis, plainNode, nodeRedis}
	andLeast  = []string{plainCaddy, minimalRedis, gatewayRedis, gatewayBolt, plainFiber, fiberRedis, plainNode, nodeRedis}
	replayers = []string{staticCaddy, gatewayRedis, gatewayBolt, plainFiber, fiberRedis, plainNode, nodeRedis}
	ours      = []string{plainCaddy, gatewayRedis, gatewayBolt}
)

// plan is what a run measures.
func plan(o options) []*cell {
	cells := []*cell{
		{kind: kindFresh, size: small, conns: 64, targets: andLeast},
		{kind: kindSteady, size: small, conns: connsSteady, targets: []string{plainCaddy, gatewayRedis, gatewayBolt, plainFiber, fiberRedis}},
		{kind: kindFresh, size: small, conns: 16, targets: andLeast},
		{kind: kindFresh, size: small, conns: 256, targets: andLeast},
		{kind: kindHot, size: small, conns: 64, targets: replayers},
		{kind: kindHot, size: small, conns: 16, targets: replayers},
		{kind: kindHot, size: small, conns: 256, targets: replayers},
		{kind: kindCold, size: small, conns: 64, targets: []string{staticCaddy, gatewayRedis, gatewayBolt}},
		{kind: kindCold, size: small, conns: 16, targets: []string{staticCaddy, gatewayRedis, gatewayBolt}},
		{kind: kindDoubled, size: small, conns: 64, targets: everybody},
		{kind: kindOneKey, size: small, conns: 64, targets: everybody},
		{kind: kindFresh, size: medium, conns: 64, targets: everybody},
		{kind: kindHot, size: medium, conns: 64, targets: replayers},
		{kind: kindFresh, size: large, conns: 16, targets: everybody},
		{kind: kindHot, size: large, conns: 16, targets: replayers},
	}
	if o.quick {
		cells = []*cell{
			{kind: kindFresh, size: small, conns: 64, targets: andLeast},
			{kind: kindSteady, size: small, conns: connsSteady, targets: ours},
			{kind: kindHot, size: small, conns: 64, targets: replayers},
			{kind: kindFresh, size: small, conns: 16, targets: []string{plainCaddy, minimalRedis, gatewayRedis, gatewayBolt}},
			{kind: kindFresh, size: large, conns: 16, targets: ours},
		}
	}
	for _, c := range cells {
		c.rounds, c.round = 5, 1200*time.Millisecond
		if o.quick {
			c.rounds, c.round = 3, 1000*time.Millisecond
		}
		if o.rounds > 0 {
			c.rounds = o.rounds
		}
		if o.round > 0 {
			c.round = o.round
		}
	}
	return cells
}
