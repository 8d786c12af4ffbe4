// A job's attempts on a line of time, each on a lane of its own: what ran at the
// same time stands side by side.

import { gatewayTime } from './api.js'
import { h } from './dom.js'
import { badge, lasting } from './words.js'

const ms = (at) => at ? Date.parse(at) : undefined

// parts are the times of an attempt, and what it was in each of them.
function parts(attempt, now) {
  const from = ms(attempt.started), lease = ms(attempt.lease)
  const decided = ms(attempt.resolution?.at)
  // Of a gateway that has died nothing was heard; it was believed until then.
  const ended = ms(attempt.ended) ?? (attempt.state === 'starting' ? now : Math.min(lease, decided ?? now))
  const all = [{ kind: attempt.state === 'starting' ? 'running' : attempt.state, from, to: Math.max(from, ended) }]
  if (attempt.state === 'unknown') all.push({ kind: 'waiting', from: ended, to: Math.max(ended, now) })
  else if (decided > ended) all.push({ kind: 'waiting', from: ended, to: decided })
  return { all, decided }
}

// step is a round number of seconds, of which a handful make up the span.
const step = (span) => [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400]
  .find((s) => span / s <= 5) ?? 86400 * Math.ceil(span / 86400 / 5)

const after = (ms) => ms ? `+${lasting(ms / 1000)}` : '0'

export function timeline(job) {
  const now = gatewayTime
  const lanes = job.attempts.map((attempt) => ({ attempt, ...parts(attempt, now) }))
  const from = Math.min(...lanes.map((l) => l.all[0].from))
  const to = Math.max(from + 20, ...lanes.flatMap((l) => [...l.all.map((p) => p.to), l.decided ?? 0]))
  const span = (to - from) * 1.02
  const place = (at) => `${((at - from) / span * 100).toFixed(3)}%`
  const every = step(span / 1000)
  const ticks = []
  for (let s = 0; s * 1000 <= span; s += every) ticks.push(s)

  return h('div', { class: 'timeline' },
    h('div', { class: 'axis', 'aria-hidden': 'true' }, ticks.map((s) =>
      h('span', { class: 'tick', style: { left: `${(s * 1000 / span * 100).toFixed(3)}%` } }, // At the end there is no room for it.
        s * 1000 < span * 0.87 && h('span', {}, after(s * 1000))))),
    h('ol', { class: 'lanes', 'aria-label': 'Attempts on a line of time' }, lanes.map(({ attempt, all, decided }) => {
      const won = attempt.number === job.result?.attempt
      return h('li', { class: `lane ${won ? 'won' : ''}`, 'data-key': `lane-${attempt.number}` },
        h('p', { class: 'lane-name' },
          h('button', { type: 'button', class: 'link', 'data-action': 'attempt', 'data-attempt': attempt.number }, `Attempt ${attempt.number}`),
          attempt.provider && h('span', { class: 'provider' }, attempt.provider),
          won ? badge('won', '★ winner') : badge(attempt.state)),
        h('p', { class: 'lane-hint' },
          `started at ${after(all[0].from - from)}, ${attempt.state === 'starting' ? 'under way for' : 'took'} ${lasting((all[0].to - all[0].from) / 1000)}`,
          attempt.state === 'unknown' && `, unknown for ${lasting((all[1].to - all[1].from) / 1000)}`,
          decided && `, decided at ${after(decided - from)}`),
        h('div', { class: 'track', 'aria-hidden': 'true' },
          all.map((p) => h('span', { class: `part was-${p.kind}`, style: { left: place(p.from), width: `${((p.to - p.from) / span * 100).toFixed(3)}%` } })),
          decided && h('span', { class: 'decided', style: { left: place(decided) } })))
    })))
}
