// The decision on an attempt whose outcome is unknown.

import { jobPath, post } from './api.js'
import { h } from './dom.js'
import { badge, size, time } from './words.js'

const choices = [
  ['failed', 'It was not executed, and won’t be', 'The next retry is executed. If the attempt succeeds after all and nothing else was tried, its answer still counts.'],
  ['cancelled', 'It is to count for nothing', 'Whatever became of it, for instance since it was undone by hand. The next retry is executed, and a late answer is thrown away.'],
  ['succeeded', 'It was executed', 'Retries get the response that you give here. Nothing is executed any more.'],
]

// decide asks what became of an attempt, and has it recorded. What is decided on is
// the attempt that was shown: if that is not unknown any more, nothing is done. It
// tells what is to be said, and how the job is then, where that is known.
export function decide(job, attempt, session) {
  const form = h('form', { class: 'decision' }, questions(job, attempt, session))
  const dialog = h('dialog', { 'aria-labelledby': 'decision-title' }, form)
  document.body.append(dialog)
  return new Promise((resolve) => {
    const outcome = { said: '', job: undefined }
    dialog.addEventListener('close', () => { dialog.remove(); resolve(outcome) })
    dialog.addEventListener('click', (event) => { if (event.target.closest('[data-close]')) dialog.close() })
    form.addEventListener('change', () => follow(form))
    form.addEventListener('submit', async (event) => {
      event.preventDefault()
      if (form.getAttribute('aria-busy') === 'true') return
      form.setAttribute('aria-busy', 'true')
      const decision = read(form, attempt)
      try {
        outcome.job = await post(jobPath(job.store, job.id, 'resolve'), decision)
        outcome.said = `Attempt ${attempt.number} is resolved as ${decision.as}. The job is ${outcome.job.state} now.`
        dialog.close()
      } catch (error) {
        outcome.job = error.job
        if (error.job) lost(form, error, attempt)
        else problem(form, error.message)
      } finally {
        form.removeAttribute('aria-busy')
      }
    })
    follow(form)
    dialog.showModal()
  })
}

function questions(job, attempt, session) {
  const kept = attempt.kept
  return [
    h('h2', { id: 'decision-title' }, `What became of attempt ${attempt.number}?`),
    h('p', { class: 'about' }, h('span', { class: 'method' }, job.request.method), ' ', h('span', { class: 'path' }, job.request.path),
      job.request.label && h('span', { class: 'label' }, job.request.label)),
    h('p', { class: 'hint' }, `On the wire: ${attempt.evidence.summary}. What became of it, only the upstream knows.`),
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
        h('label', {}, 'Body', h('textarea', { name: 'body', rows: 4, spellcheck: 'false' })))),
    h('label', {}, 'Evidence: what the decision rests on',
      h('textarea', { name: 'evidence', rows: 2, required: true, maxlength: 4000, placeholder: 'not in the bank’s journal of 3 May' })),
    session.unprotected && h('label', {}, 'Your name', h('input', { name: 'actor', required: true, maxlength: 200, autocomplete: 'username' })),
    h('label', { class: 'choice confirm', 'data-if': 'failed cancelled' }, h('input', { type: 'checkbox', name: 'sure', required: true }),
      h('span', {}, 'The upstream has certainly ended its work on it. If it was executed after all, the next retry makes two executions.')),
    h('p', { class: 'problem', role: 'alert', id: 'decision-problem' }),
    h('div', { class: 'buttons' },
      h('button', { type: 'button', 'data-close': true }, 'Cancel'),
      h('button', { type: 'submit', class: 'primary', name: 'decide' }, 'Resolve')),
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
  form.elements.decide.textContent = as ? `Resolve as ${as}` : 'Resolve'
}

function read(form, attempt) {
  const field = form.elements
  const decision = { attempt: attempt.number, as: field.as.value, evidence: field.evidence.value.trim(), actor: field.actor?.value.trim() ?? '' }
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

function problem(form, message) {
  form.querySelector('#decision-problem').textContent = message
}

// lost tells of a decision that came too late: what the job is by now, and why.
function lost(form, error, attempt) {
  const now = error.job.attempts.find((a) => a.number === attempt.number)
  const why = now?.resolution
  form.replaceChildren(
    h('h2', { id: 'decision-title' }, 'Nothing was done'),
    h('div', { class: 'lost', role: 'alert' },
      h('p', {}, 'The attempt is not as it was shown any more: somebody else has decided, or an answer has come.'),
      h('p', {}, 'The job is ', badge(error.job.state), ' now', now && [', and attempt ', String(now.number), ' is ', badge(now.state)], '.'),
      why && h('p', {}, 'Resolved as ', h('strong', {}, why.as), ' by ', h('strong', {}, why.actor), ', ', time(why.at), ', on evidence: ', h('q', {}, why.evidence)),
      !why && now?.reason && h('p', {}, now.reason),
      h('p', { class: 'hint' }, error.message)),
    h('div', { class: 'buttons' }, h('button', { type: 'button', class: 'primary', 'data-close': true }, 'Show the job as it is')))
  form.querySelector('button').focus()
}
