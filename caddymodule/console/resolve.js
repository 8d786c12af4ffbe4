// The decision on an attempt whose outcome is unknown.

import { jobPath, post } from './api.js'
import { actor, actorOf, ask, refusal, subject } from './dialog.js'
import { h } from './dom.js'
import { badge, broken, size } from './words.js'

const choices = [
  ['failed', 'It was not executed, and won’t be', 'The next retry is executed. If the attempt succeeds after all and nothing else was tried, its answer still counts.'],
  ['cancelled', 'It is to count for nothing', 'Whatever became of it, for instance since it was undone by hand. The next retry is executed, and a late answer is thrown away.'],
  ['succeeded', 'It was executed', 'Retries get the response that you give here. Nothing is executed any more.'],
]

// decide asks what became of an attempt, and has it recorded. What is decided on is
// the attempt that was shown: if that is not unknown any more, nothing is done. It
// tells what is to be said, and how the job is then, nothing if it has not changed.
export function decide(job, attempt, session) {
  return ask({
    title: `What became of attempt ${attempt.number}?`,
    about: questions(job, attempt, session),
    button: 'Resolve',
    follow,
    submit: async (form) => {
      const decision = read(form, attempt)
      const after = await post(jobPath(job.store, job.id, 'resolve'), decision)
      return { job: after, said: `Attempt ${attempt.number} is resolved as ${decision.as}. The job is ${after.state} now.` }
    },
    instead: (error) => error.job &&
      refusal(error, 'The attempt is not as it was shown any more: somebody else has decided, or an answer has come.', attempt.number),
  })
}

function questions(job, attempt, session) {
  const kept = attempt.kept
  return [
    subject(job),
    h('p', { class: 'hint' }, `On the wire: ${attempt.evidence.summary}. `,
      attempt.violation && `The answer breaks the contract: ${broken(attempt.violation)}. `, 'What became of it, only the upstream knows.'),
    h('fieldset', { class: 'choices' }, h('legend', {}, 'You have found that'), choices.map(([value, name, means]) =>
      h('label', { class: 'choice' }, h('input', { type: 'radio', name: 'as', value, required: true }),
        h('span', {}, h('strong', {}, name), ' ', badge(value), h('span', { class: 'hint' }, means))))),
    h('fieldset', { class: 'response', 'data-if': 'succeeded' }, h('legend', {}, 'Response for retries'),
      kept && h('label', { class: 'choice' }, h('input', { type: 'checkbox', name: 'kept', checked: true }),
        h('span', {}, `The answer that was kept: status ${kept.status}, ${size(kept.size)}`)),
      h('fieldset', { class: 'given', 'data-unless': 'kept' },
        h('legend', { class: 'said' }, 'Another one'),
        h('label', {}, 'Status', h('input', { name: 'status', type: 'number', min: 200, max: 599, required: true, value: 200 })),
        h('label', {}, 'Header lines', h('textarea', { name: 'header', rows: 2, spellcheck: 'false' }, 'Content-Type: application/json')),
        h('label', {}, 'Body', h('textarea', { name: 'body', rows: 3, spellcheck: 'false' })))),
    h('label', {}, 'Evidence: what the decision rests on',
      h('textarea', { name: 'evidence', rows: 2, required: true, maxlength: 4000, placeholder: 'not in the bank’s journal of 3 May' })),
    actor(session),
    h('label', { class: 'choice confirm', 'data-if': 'failed cancelled' }, h('input', { type: 'checkbox', name: 'sure', required: true }),
      h('span', {}, 'The upstream has certainly ended its work on it. If it was executed after all, the next retry makes two executions.')),
    h('p', { class: 'hint' }, session.unprotected ? 'Your name and the evidence are kept with the attempt, and logged.' : `Recorded as decided by ${session.user}, with the evidence.`),
  ]
}

// follow shows only what the choice that was made needs.
function follow(form) {
  const as = form.elements.as.value
  for (const part of form.querySelectorAll('[data-if]')) {
    const needed = part.dataset.if.split(' ').includes(as)
    part.hidden = !needed
    if (part.tagName === 'FIELDSET') part.disabled = !needed
    else for (const input of part.querySelectorAll('input')) input.disabled = !needed
  }
  const given = form.querySelector('[data-unless]')
  given.hidden = given.disabled = form.elements.kept?.checked === true
  form.elements.go.textContent = as ? `Resolve as ${as}` : 'Resolve'
}

function read(form, attempt) {
  const field = form.elements
  const decision = { attempt: attempt.number, as: field.as.value, evidence: field.evidence.value.trim(), actor: actorOf(form) }
  if (decision.as !== 'succeeded') return decision
  if (field.kept?.checked) return { ...decision, kept: true }
  const header = {}
  for (const line of field.header.value.split('\n')) {
    const colon = line.indexOf(':')
    if (!line.trim()) continue
    const name = (colon < 0 ? line : line.slice(0, colon)).trim()
    ;(header[name] ??= []).push(colon < 0 ? '' : line.slice(colon + 1).trim())
  }
  return { ...decision, response: { status: Number(field.status.value), header, body: field.body.value } }
}
