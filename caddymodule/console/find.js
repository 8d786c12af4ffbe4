// The way to a job whose key is known and whose id is not.

import { post } from './api.js'
import { ask } from './dialog.js'
import { h } from './dom.js'

// find asks for a key and whose it is, and returns its job. Neither goes into an
// address, where it could end up in a log or a history.
export function find(stores) {
  return ask({
    title: 'Find a job by its key',
    about: [
      h('label', {}, 'Key', h('input', { name: 'key', required: true, maxlength: 300, spellcheck: 'false', autocomplete: 'off', autocapitalize: 'off', 'aria-describedby': 'find-key' }),
        h('span', { class: 'hint', id: 'find-key' }, 'What the request has in ', h('code', {}, 'Idempotency-Key'), '.')),
      h('label', {}, 'Owner', h('input', { name: 'owner', required: true, spellcheck: 'false', autocomplete: 'off', autocapitalize: 'off', 'aria-describedby': 'find-owner' }),
        h('span', { class: 'hint', id: 'find-owner' }, 'Whose key it is: what the route’s owner came to for that request, such as a user’s id.')),
      h('label', { class: 'choice' }, h('input', { type: 'checkbox', name: 'shared' }),
        h('span', {}, 'Everybody’s: the route has ', h('code', {}, 'owner shared'))),
      h('div', { class: 'beside' },
        h('label', {}, 'Space', h('input', { name: 'space', required: true, value: 'main', spellcheck: 'false', autocomplete: 'off', autocapitalize: 'off' })),
        stores.length > 1 && h('label', {}, 'Store', h('select', { name: 'store' }, h('option', { value: '' }, 'any'), stores.map((name) => h('option', { value: name }, name))))),
    ],
    button: 'Find',
    follow: (form) => { form.elements.owner.disabled = form.elements.shared.checked },
    submit: ({ elements: field }) => post(field.store?.value ? `find?${new URLSearchParams({ store: field.store.value })}` : 'find', {
      key: field.key.value.trim(), space: field.space.value.trim(),
      ...field.shared.checked ? { shared: true } : { owner: field.owner.value },
    }),
  })
}
