// How numbers, times and states are written.

import { h } from './dom.js'

// Go writes durations like 1h2m3.5s.
const units = { h: 3600, m: 60, s: 1, ms: 1e-3, µs: 1e-6, ns: 1e-9 }

export function seconds(duration) {
  let sum = 0
  for (const [, n, unit] of (duration ?? '').matchAll(/([\d.]+)(h|ms|m|s|µs|ns)/g)) sum += Number(n) * units[unit]
  return sum
}

// A number and its unit stay on one line.
const of = (n, unit) => `${n}\u00a0${unit}`

// lasting writes a number of seconds so that it can be read at a glance.
export function lasting(s) {
  if (s < 1) return of(Math.max(0, Math.round(s * 1000)), 'ms')
  if (s < 10) return of(Math.round(s * 10) / 10, 's')
  if (s < 60) return of(Math.round(s), 's')
  const round = Math.round(s)
  if (s < 3600) return of(Math.floor(round / 60), 'min') + (round % 60 ? ' ' + of(round % 60, 's') : '')
  if (s < 86400) return of(Math.floor(s / 3600), 'h') + ' ' + of(Math.floor((s % 3600) / 60), 'min')
  return of(Math.floor(s / 86400), 'd') + ' ' + of(Math.floor((s % 86400) / 3600), 'h')
}

export const count = new Intl.NumberFormat('en')
const fullTime = new Intl.DateTimeFormat('en-GB', { dateStyle: 'medium', timeStyle: 'medium' })

// time is a moment in the reader's own time; its title has it in UTC.
export const time = (at) => h('time', { datetime: at, title: at }, fullTime.format(new Date(at)))

export function size(n) {
  for (const unit of ['B', 'KiB', 'MiB']) {
    if (n < 1024 || unit === 'MiB') return of(n < 10 && unit !== 'B' ? n.toFixed(1) : Math.round(n), unit)
    n /= 1024
  }
  return ''
}

export const plural = (n, one, many) => `${count.format(n)} ${n === 1 ? one : many}`

export const badge = (state, extra) => h('span', { class: `badge is-${state}` }, extra ?? state)

// path breaks into lines between its parts, unless somebody has sent far too many.
function path(text) {
  const parts = text.split(/(?<=\/)(?=.)/)
  return h('span', { class: 'path' }, parts.length > 30 ? text : parts.map((part, i) => i ? [h('wbr'), part] : part))
}

export const request = (job) => [h('span', { class: 'method' }, job.request.method), ' ', path(job.request.path)]

export const linkTo = (job) => `#/job/${encodeURIComponent(job.store)}/${encodeURIComponent(job.id)}`

// facts is a list of names and what is known; what is not known is left out.
export const facts = (rows, style) => h('dl', { class: style ?? 'facts' }, rows.filter(([, value]) => value !== undefined && value !== null && value !== '')
  .map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))))

// broken says how an answer breaks its contract.
export const broken = (v) => `${v.path ? v.path + ': ' : ''}expected ${v.expected}, found ${v.found}`

// decisive is the attempt that one wants to hear of first: the last one that is
// unknown, or else the last one.
export const decisive = (job) => (job.attempts ?? []).findLast((a) => a.state === 'unknown') ?? job.attempts?.at(-1)
