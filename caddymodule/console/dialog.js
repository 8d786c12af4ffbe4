// A question that is asked in a dialog, and what comes of the answer.

import { h } from './dom.js'
import { badge, request, time } from './words.js'

// ask shows a form in a dialog. Its button does what submit does, which ends it; if
// that fails, the form says why, or shows in its place what instead makes of the
// error. It returns what submit has, undefined if nothing was done.
export function ask({ title, about, button, submit, instead, follow }) {
  const problem = h('p', { class: 'problem', role: 'alert' })
  const form = h('form', { class: 'ask' },
    h('div', { class: 'ask-body' }, h('h2', { id: 'ask-title' }, title), about),
    h('div', { class: 'ask-foot' }, problem, h('div', { class: 'buttons' },
      h('button', { type: 'button', 'data-close': true }, 'Cancel'),
      h('button', { type: 'submit', class: 'primary', name: 'go' }, button))))
  const dialog = h('dialog', { 'aria-labelledby': 'ask-title' }, form)
  document.body.append(dialog)
  return new Promise((resolve) => {
    let outcome
    dialog.addEventListener('close', () => { dialog.remove(); resolve(outcome) })
    dialog.addEventListener('click', (event) => { if (event.target.closest('[data-close]')) dialog.close() })
    form.addEventListener('change', () => follow?.(form))
    form.addEventListener('submit', async (event) => {
      event.preventDefault()
      if (form.getAttribute('aria-busy') === 'true') return
      form.setAttribute('aria-busy', 'true')
      try {
        outcome = await submit(form)
        dialog.close()
      } catch (error) {
        const told = instead?.(error)
        if (told) {
          form.replaceChildren(...told)
          form.querySelector('button').focus()
        } else problem.textContent = error.message
      } finally {
        form.removeAttribute('aria-busy')
      }
    })
    follow?.(form)
    dialog.showModal()
  })
}

// refusal tells that nothing was done since the job is not as it was shown any more:
// what it is by now, and why.
export function refusal(error, why, number) {
  const now = error.job.attempts.find((a) => a.number === number)
  const decision = now?.resolution
  return [
    h('div', { class: 'ask-body' },
      h('h2', { id: 'ask-title' }, 'Nothing was done'),
      h('div', { class: 'refused', role: 'alert' },
        h('p', {}, why),
        h('p', {}, 'The job is ', badge(error.job.state), ' now', now && [', and attempt ', String(now.number), ' is ', badge(now.state)], '.'),
        decision && h('p', {}, 'Resolved as ', h('strong', {}, decision.as), ' by ', h('strong', {}, decision.actor), ', ', time(decision.at), ', on evidence: ', h('q', {}, decision.evidence)),
        !decision && now?.reason && h('p', {}, now.reason),
        h('p', { class: 'hint' }, error.message))),
    h('div', { class: 'ask-foot' }, h('div', { class: 'buttons' },
      h('button', { type: 'button', class: 'primary', 'data-close': true }, 'Show the job as it is'))),
  ]
}

// subject is the job that is asked about, and actor who answers, where that is not
// known.
export const subject = (job) => h('p', { class: 'about' }, request(job),
  job.request.label && h('span', { class: 'label' }, job.request.label))

export const actor = (session) => session.unprotected &&
  h('label', {}, 'Your name', h('input', { name: 'actor', required: true, maxlength: 200, autocomplete: 'username' }))

export const actorOf = (form) => form.elements.actor?.value.trim() ?? ''
