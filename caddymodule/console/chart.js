// The rate of requests by verdict, over the last quarter of an hour.

import { h } from './dom.js'
import { count, lasting } from './words.js'

const span = 15 * 60e3
const bar = 15e3 // how much time a column stands for
const height = 180
const inset = { left: 40, right: 8, top: 10, bottom: 24 }

// The verdicts, from the bottom of a column to its top, and the colour of each.
const known = [
  ['executed', 'executed'], ['replayed', 'replayed'], ['waited', 'waited'], ['bypassed', 'bypassed'],
  ['in_flight', 'in-flight'], ['not_executed', 'not-executed'], ['key_reused', 'key-reused'],
  ['outcome_unknown', 'outcome-unknown'], ['store_unavailable', 'store-unavailable'],
]
const order = new Map(known.map(([verdict], i) => [verdict, i]))
const colour = new Map(known)

// What passes unprotected says nothing of what is protected, and may be far more.
const hidden = new Set(['bypassed'])

export function toggle(verdict) {
  if (!hidden.delete(verdict)) hidden.add(verdict)
}

// columns spreads what was counted between two samples over the columns in between.
function columns(samples, end) {
  const all = Array.from({ length: span / bar }, () => ({}))
  const first = end - span
  for (let i = 1; i < samples.length; i++) {
    const from = Date.parse(samples[i - 1].at), to = Date.parse(samples[i].at)
    if (to <= first || to <= from) continue
    for (const [verdict, total] of Object.entries(samples[i].totals)) {
      const rate = (total - (samples[i - 1].totals[verdict] ?? 0)) / (to - from)
      if (rate <= 0) continue
      for (let c = Math.max(0, Math.floor((from - first) / bar)); c < all.length && first + c * bar < to; c++) {
        const shared = Math.min(to, first + (c + 1) * bar) - Math.max(from, first + c * bar)
        if (shared > 0) all[c][verdict] = (all[c][verdict] ?? 0) + rate * shared / (bar / 1000)
      }
    }
  }
  return all
}

const perSecond = (n) => n === 0 ? '0' : n < 0.1 ? n.toFixed(2) : n < 10 ? n.toFixed(1) : count.format(Math.round(n))

// ceiling is the round number that a scale ends with.
function ceiling(n) {
  const ten = 10 ** Math.floor(Math.log10(n))
  return ten * [1, 2, 5, 10].find((step) => step * ten >= n)
}

// rates draws the chart, as wide as there is room, and says what is in it.
export function rates(state, width) {
  const { samples, totals } = state
  const end = samples.length ? Date.parse(samples.at(-1).at) : Date.now()
  const verdicts = [...new Set([...known.slice(0, 3).map(([v]) => v), ...Object.keys(totals)])]
    .filter((v) => totals[v] || order.get(v) < 3)
    .sort((a, b) => (order.get(a) ?? 99) - (order.get(b) ?? 99) || a.localeCompare(b))
  const seen = verdicts.filter((v) => !hidden.has(v))
  const bars = columns(samples, end)
  const now = bars.at(-1)
  const highest = Math.max(...bars.map((b) => seen.reduce((sum, v) => sum + (b[v] ?? 0), 0)))
  const top = ceiling(Math.max(highest, 0.1))
  const plot = { w: Math.max(40, width - inset.left - inset.right), h: height - inset.top - inset.bottom }
  const x = (c) => inset.left + plot.w * c / bars.length
  const y = (rate) => inset.top + plot.h * (1 - rate / top)

  const drawn = [0, 0.5, 1].map((part) => [
    h('line', { class: 'grid', x1: inset.left, x2: width - inset.right, y1: y(top * part), y2: y(top * part) }),
    h('text', { class: 'scale', x: inset.left - 6, y: y(top * part) + 4, 'text-anchor': 'end' }, perSecond(top * part)),
  ])
  for (const minutes of [15, 10, 5, 0]) {
    const at = inset.left + plot.w * (1 - minutes / 15)
    const anchor = minutes === 15 ? 'start' : minutes === 0 ? 'end' : 'middle'
    drawn.push(h('text', { class: 'scale', x: at, y: height - 6, 'text-anchor': anchor }, minutes ? `−${minutes} min` : 'now'))
  }
  bars.forEach((b, c) => {
    let sum = 0
    for (const v of seen) {
      if (!b[v]) continue
      const low = y(sum), high = y(sum += b[v])
      drawn.push(h('rect', { class: `bar of-${colour.get(v) ?? 'other'}`, x: x(c) + 0.5, y: high, width: Math.max(1, plot.w / bars.length - 1), height: Math.max(0.5, low - high) }))
    }
  })
  const summary = `Requests in a second over the last 15 minutes, at most ${perSecond(highest)}; at present ` +
    seen.map((v) => `${v.replaceAll('_', ' ')} ${perSecond(now[v] ?? 0)}`).join(', ') + '.'
  return [
    h('svg', { class: 'rates', role: 'img', 'aria-label': summary, width, height, viewBox: `0 0 ${width} ${height}` }, drawn),
    samples.length < 2 && h('p', { class: 'hint' }, 'The gateway has just begun to count; rates follow in a few seconds.'),
    h('ul', { class: 'legend', 'aria-label': 'Verdicts' }, verdicts.map((v) => h('li', { 'data-key': v },
      h('button', { type: 'button', class: 'verdict', 'data-action': 'verdict', 'data-verdict': v, 'aria-pressed': String(!hidden.has(v)) },
        h('span', { class: `swatch of-${colour.get(v) ?? 'other'}`, 'aria-hidden': 'true' }),
        h('span', { class: 'name' }, v.replaceAll('_', ' ')),
        h('span', { class: 'rate' }, `${perSecond(now[v] ?? 0)}/s`),
        h('span', { class: 'total' }, `${count.format(totals[v] ?? 0)} in all`))))),
    h('p', { class: 'hint' }, `Requests to this gateway. It has counted for ${lasting((end - Date.parse(state.since)) / 1000)}. A verdict’s button hides or shows it in the chart.`),
  ]
}
