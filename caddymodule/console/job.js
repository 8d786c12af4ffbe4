// One job, its attempts, and what can be decided.

import { get, jobPath } from './api.js'
import { h } from './dom.js'
import { forget } from './forget.js'
import { decide } from './resolve.js'
import { timeline } from './timeline.js'
import { badge, broken, facts, lasting, plural, request, seconds, size, time } from './words.js'

const seen = { store: '', id: '', job: undefined, problem: '', forgotten: false }

export function open(store, id) {
  if (seen.store !== store || seen.id !== id) Object.assign(seen, { store, id, job: undefined, problem: '', forgotten: false })
}

export const title = () => seen.job ? `${seen.job.request.method} ${seen.job.request.path}, ${seen.job.state}` : 'Job'

export async function load() {
  const { store, id, job: before } = seen
  if (seen.forgotten) return ''
  try {
    const job = await get(jobPath(store, id))
    if (id !== seen.id || store !== seen.store || seen.forgotten) return ''
    Object.assign(seen, { job, problem: '' })
    return before && before.state !== job.state ? `The job is ${job.state} now.` : ''
  } catch (error) {
    if (seen.forgotten) return ''
    if (error.code !== 'no-such-job') throw error
    seen.problem = before ? 'This job has expired, or was forgotten. What is shown is how it was last seen.' : 'There is no such job. It may have expired.'
    return ''
  }
}

export const actions = {
  attempt: (target) => {
    const card = document.getElementById(`attempt-${target.dataset.attempt}`)
    card?.scrollIntoView({ block: 'nearest' })
    card?.focus()
  },
  resolve: async (target, session) => {
    const attempt = seen.job.attempts.find((a) => a.number === Number(target.dataset.attempt))
    if (!attempt) return ''
    const done = await decide(seen.job, attempt, session)
    if (done?.job.id === seen.id) seen.job = done.job
    return done?.said
  },
  forget: async (target, session) => {
    const { id } = seen
    if (!await forget(seen.job, session) || id !== seen.id) return ''
    Object.assign(seen, { forgotten: true, problem: '' })
    return 'The job is forgotten. Its key is new.'
  },
}

function lookups(l) {
  const said = (l.status ? `status ${l.status}` : 'no answer') + (l.note ? `: ${l.note}` : '')
  return l.count ? [`${l.count}, the last one `, time(l.last), `: ${said}`] : `none so far: ${l.note}`
}

function attempt(job, a, gone) {
  const won = a.number === job.result?.attempt
  const e = a.evidence
  return h('article', { class: `card attempt ${won ? 'won' : ''}`, id: `attempt-${a.number}`, tabindex: '-1', 'data-key': `attempt-${a.number}`, 'aria-labelledby': `attempt-title-${a.number}` },
    h('div', { class: 'card-head' },
      h('h3', { id: `attempt-title-${a.number}` }, `Attempt ${a.number}`, a.provider && h('span', { class: 'provider' }, a.provider)),
      badge(a.state), won && badge('won', '★ winner'),
      a.state === 'unknown' && !gone && h('button', { type: 'button', class: 'primary', 'data-action': 'resolve', 'data-attempt': a.number },
        'Resolve', h('span', { class: 'said' }, ` attempt ${a.number}`), ' …')),
    a.reason && h('p', { class: 'reason' }, a.reason),
    facts([
      ['On the wire', e.summary],
      ['Upstream', e.upstream],
      ['Answer', e.status ? `status ${e.status}, ${size(e.size ?? 0)}` : ''],
      ['Broke the contract', a.violation && broken(a.violation)],
      ['Kept answer', a.kept && `status ${a.kept.status}, ${size(a.kept.size)}; it can be made the result`],
      ['Started', time(a.started)],
      ['Ended', a.ended ? [time(a.ended), ` after ${lasting((Date.parse(a.ended) - Date.parse(a.started)) / 1000)}`] : 'not that we know'],
      ['Lease until', a.state === 'starting' || a.state === 'unknown' ? time(a.lease) : ''],
      ['Listened to', !a.ended && a.state === 'unknown' && a.listens_until ? ['until ', time(a.listens_until), ' at the latest'] : ''],
      ['Trace', a.trace && h('code', {}, a.trace.split('-')[1] ?? a.trace)],
      ['Upstream asked', a.lookups && lookups(a.lookups)],
      ['Resolved', a.resolution && [`as ${a.resolution.as} by `, h('strong', {}, a.resolution.actor), ', ', time(a.resolution.at)]],
      ['On evidence', a.resolution?.evidence],
    ]))
}

export function view() {
  const { job, problem } = seen
  const back = h('p', { class: 'back', 'data-key': 'back' }, h('a', { href: '#/' }, '← All jobs'))
  if (!job) return [back, h('p', { class: 'empty' }, problem || 'Asking the gateway …')]
  const gone = seen.forgotten || problem !== '' // nothing can be decided any more
  const missing = job.attempt_count - job.attempts.length
  const r = job.result
  return [
    back,
    problem && h('p', { class: 'problem', role: 'status', 'data-key': 'problem' }, problem),
    seen.forgotten && h('p', { class: 'notice', 'data-key': 'notice' }, 'This job is forgotten, and its key is new. What is shown is how it was.'),
    h('div', { class: 'job-top', 'data-key': 'top' }, h('div', { class: 'job-head' }, h('h1', {}, request(job)), badge(seen.forgotten ? 'forgotten' : job.state), job.request.label && h('span', { class: 'label' }, job.request.label),
      job.state === 'completed' && !gone && h('button', { type: 'button', 'data-action': 'forget' }, 'Forget …')),
    h('p', { class: 'hint' }, 'Job ', h('code', {}, job.id))),
    h('section', { class: 'card', 'data-key': 'facts', 'aria-label': 'The job' }, facts([
      ['Age', [lasting(seconds(job.age)), ', since ', time(job.created)]],
      ['Result', r ? [`status ${r.status}, ${size(r.size)}, of attempt ${r.attempt}`, r.kept ? '' : '; the body was not kept'] : 'none'],
      ['Expires', job.expires ? time(job.expires) : `never, as long as it is ${job.state}`],
      ['Host', job.request.host],
      ['Body', [job.request.media_type, size(job.request.size)].filter(Boolean).join(', ')],
      ['Store, space', `${job.store}, ${job.space}`],
      ['Owner', [h('code', {}, `${job.owner.slice(0, 16)}…`), ' (a digest)']],
    ])),
    job.attempts.length > 0 && h('section', { class: 'card', 'data-key': 'timeline', 'aria-labelledby': 'timeline-title' },
      h('h2', { id: 'timeline-title' }, 'Attempts'),
      missing > 0 && h('p', { class: 'hint' }, `${plural(missing, 'earlier attempt is', 'earlier attempts are')} not listed any more.`),
      timeline(job)),
    job.attempts.map((a) => attempt(job, a, gone)),
  ]
}
