// The first view: counts, rates, and the jobs that somebody has to settle.

import { get, jobs } from './api.js'
import { rates, toggle } from './chart.js'
import { h } from './dom.js'
import { find } from './find.js'
import { badge, count, decisive, lasting, linkTo, plural, request, seconds } from './words.js'

const pageSize = 100
const states = [
  ['unknown', 'Unresolved'], ['running', 'Running'], ['completed', 'Completed'], ['open', 'Open'], ['', 'All'],
]
// To find these takes as long as there are such jobs. For the others the whole
// store is gone through, and so only when somebody asks.
const indexed = new Set(['unknown', 'running'])

const seen = { state: 'unknown', most: pageSize, list: undefined, stats: undefined, verdicts: undefined, missing: '' }

export const title = () => {
  const n = seen.stats?.stores.reduce((sum, s) => sum + s.unknown, 0)
  return n ? `(${n}) Jobs` : 'Jobs'
}

export async function load({ asked } = {}) {
  const state = seen.state
  const list = indexed.has(state) || asked || !seen.list ? jobs({ state }, seen.most) : seen.list
  const [stats, verdicts, found] = await Promise.all([
    get('stats'), get('verdicts', { after: seen.verdicts?.samples.at(-1)?.at }), list,
  ])
  const before = seen.verdicts?.since === verdicts.since ? seen.verdicts.samples : []
  verdicts.samples = [...before, ...verdicts.samples].slice(-200)
  const earlier = seen.stats?.stores.reduce((sum, s) => sum + s.unknown, 0)
  Object.assign(seen, { stats, verdicts })
  if (state === seen.state) seen.list = found
  const n = stats.stores.reduce((sum, s) => sum + s.unknown, 0)
  return earlier !== undefined && n > earlier ? `${plural(n, 'job is', 'jobs are')} unresolved.` : ''
}

export const actions = {
  verdict: (target) => toggle(target.dataset.verdict),
  more: () => { seen.most += pageSize; return load({ asked: true }) },
  refresh: () => load({ asked: true }),
  find: async () => {
    const job = await find(seen.stats.stores.map((s) => s.store))
    if (job) location.hash = linkTo(job)
  },
}

export const changes = {
  state: (target) => { Object.assign(seen, { state: target.value, most: pageSize, list: undefined }); return load({ asked: true }) },
}

export const submits = {
  find: async (form) => {
    const id = form.elements.job.value.trim()
    seen.missing = ''
    try {
      const job = await get(`jobs/${encodeURIComponent(id)}`)
      form.reset()
      location.hash = linkTo(job)
    } catch (error) {
      seen.missing = error.code === 'no-such-job' ? 'There is no such job. It may have expired.' : error.message
    }
  },
}

function tiles() {
  const stores = seen.stats.stores
  const sum = (name) => stores.reduce((n, s) => n + s[name], 0)
  const oldest = Math.max(0, ...stores.map((s) => seconds(s.oldest_unknown)))
  const tile = (name, n, hint, kind) => h('div', { class: `tile ${kind ?? ''}` },
    h('dt', {}, name), h('dd', { class: 'number' }, count.format(n)), h('dd', { class: 'hint' }, hint))
  return h('dl', { class: 'tiles' },
    tile('Unresolved', sum('unknown'), sum('unknown') ? `the oldest for ${lasting(oldest)}` : 'nothing to settle', sum('unknown') ? 'warns' : ''),
    tile('Running', sum('running'), 'jobs, for 2 seconds or longer'),
    tile('Attempts', sum('attempts'), 'this gateway listens to'),
    tile('Waiting', sum('waiters'), 'repetitions on this gateway'))
}

function row(job, place) {
  const attempt = decisive(job)
  return h('tr', { 'data-key': `${job.store}/${job.id}`, role: 'row' },
    h('td', { role: 'cell', class: 'age' }, h('span', { class: 'cell-name' }, 'Age'), lasting(seconds(job.age))),
    h('td', { role: 'cell', class: 'what' }, h('a', { href: linkTo(job) }, request(job)),
      job.request.label && h('span', { class: 'label' }, job.request.label),
      place && h('span', { class: 'place' }, place)),
    h('td', { role: 'cell' }, badge(job.state)),
    h('td', { role: 'cell', class: 'evidence' }, attempt && [
      h('span', { class: 'reason' }, attempt.reason || (job.state === 'running' ? 'an attempt is under way' : '')),
      h('span', { class: 'hint' }, [attempt.provider, attempt.evidence.summary].filter(Boolean).join(': '))]),
    h('td', { role: 'cell', class: 'attempts' }, h('span', { class: 'cell-name' }, 'Attempts'), String(job.attempt_count)))
}

function list() {
  const { jobs: all, more } = seen.list
  const sorted = [...all].sort((a, b) => Date.parse(a.created) - Date.parse(b.created) || a.id.localeCompare(b.id))
  const stores = new Set(all.map((j) => j.store)).size > 1, spaces = new Set(all.map((j) => j.space)).size > 1
  const place = (job) => [stores && job.store, spaces && job.space].filter(Boolean).join(' · ')
  if (!all.length) return h('p', { class: 'empty', 'data-key': 'empty' }, seen.state === 'unknown'
    ? [h('span', { class: 'mark', 'aria-hidden': 'true' }, '✓'), h('strong', {}, 'No job is unresolved.'), ' Nothing is to be decided.']
    : 'There are no such jobs.')
  return [
    h('table', { class: 'jobs', role: 'table', 'aria-labelledby': 'jobs-title', 'data-key': 'table' },
      h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' },
        ['Age', 'Request', 'State', 'Evidence', 'Attempts'].map((name) => h('th', { role: 'columnheader', scope: 'col' }, name)))),
      h('tbody', { role: 'rowgroup' }, sorted.map((job) => row(job, place(job))))),
    more && h('p', { 'data-key': 'more' }, h('button', { type: 'button', 'data-action': 'more' }, 'Show more')),
  ]
}

export function view(width) {
  if (!seen.stats || !seen.list) return h('p', { class: 'empty' }, 'Asking the gateway …')
  return [
    h('h1', { class: 'said' }, 'Jobs'),
    tiles(),
    h('section', { class: 'card', 'data-key': 'rates', 'aria-labelledby': 'rates-title' },
      h('h2', { id: 'rates-title' }, 'Requests per second'), rates(seen.verdicts, Math.max(240, width - 40))),
    h('section', { class: 'card', 'data-key': 'jobs', 'aria-labelledby': 'jobs-title' },
      h('div', { class: 'card-head' },
        h('h2', { id: 'jobs-title' }, 'Jobs, oldest first'),
        h('div', { class: 'tools' },
          h('label', {}, 'State ', h('select', { 'data-change': 'state' },
            states.map(([value, name]) => h('option', { value, selected: value === seen.state }, name)))),
          !indexed.has(seen.state) && h('button', { type: 'button', 'data-action': 'refresh', 'data-key': 'refresh' }, 'Look again'),
          h('form', { class: 'find', 'data-submit': 'find', role: 'search', 'data-key': 'find' },
            h('label', {}, 'Job ', h('input', { name: 'job', required: true, spellcheck: 'false', autocomplete: 'off', placeholder: 'Idempotency-Job', 'aria-describedby': 'missing' })),
            h('button', { type: 'submit' }, 'Open')),
          h('button', { type: 'button', 'data-action': 'find', 'data-key': 'by-key' }, 'Find by key …'))),
      h('p', { id: 'missing', class: 'problem', role: 'status' }, seen.missing),
      list()),
  ]
}
