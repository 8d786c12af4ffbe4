// The views of providers and stores.

import { get } from './api.js'
import { h } from './dom.js'
import { badge, count, facts, time } from './words.js'

export const providers = (() => {
  let all
  const proofs = { primary: 'primary', proven: 'proven', unproven: 'unproven', 'not-needed': 'no proof needed' }
  const counts = (p) => Object.entries(p.attempts).sort(([a], [b]) => a.localeCompare(b)).map(([outcome, n]) => `${count.format(n)} ${outcome}`).join(', ') || 'none yet'
  // What is to be run, where that is said, stands at the end.
  const why = (text) => {
    const [said, command] = text.split('; run: ')
    return [h('p', { class: 'reason' }, said, command && '; run:'), command && h('code', { class: 'command' }, command)]
  }
  const card = (p, i) => h('article', { class: 'card', 'data-key': `${p.name}/${i}` },
    h('div', { class: 'card-head' }, h('h3', {}, p.name || 'the rest of the site'), badge(`proof-${p.proof}`, proofs[p.proof] ?? p.proof)),
    p.why && why(p.why),
    facts([
      ['Proven', p.proved && time(p.proved)],
      ['Proven until', p.proved && time(p.proven_until)],
      ['Upstreams', p.upstreams && h('ul', { class: 'plain' }, p.upstreams.map((u) => h('li', {}, h('code', {}, u.address), ' ', u.healthy ? h('span', { class: 'healthy' }, 'healthy') : badge('danger', 'unhealthy'))))],
      ['Attempts', counts(p)],
      ['Late results', p.late_results ? count.format(p.late_results) : ''],
      ['Discarded', p.discarded ? count.format(p.discarded) : ''],
      ['Broke the contract', p.violations ? count.format(p.violations) : ''],
    ]))
  // Those that can take each other's place stand together, in the order in which they
  // are tried.
  const route = (some) => {
    const { store, space, contract } = some[0]
    const key = `${store}/${space}/${contract ?? ''}`
    return h('section', { class: 'route', 'data-key': key },
      h('h2', {}, space, h('span', { class: 'hint' }, `in ${store}`, contract && `, under the contract ${contract}`)),
      h('div', { class: 'grid' }, some.map(card)))
  }
  const routes = () => [...Map.groupBy(all, (p) => JSON.stringify([p.store, p.space, p.contract])).values()]
  return {
    title: () => 'Providers',
    load: async () => { all = (await get('providers')).providers; return '' },
    view: () => [
      h('h1', {}, 'Providers'),
      !all ? h('p', { class: 'empty' }, 'Asking the gateway …')
        : all.length ? routes().map(route)
          : h('p', { class: 'empty' }, 'No route has named providers: each request goes to the rest of its site.'),
    ],
  }
})()

export const stores = (() => {
  let answer
  const finding = (f, i) => h('li', { class: `finding is-${f.severity}`, 'data-key': `${f.code}/${f.server ?? ''}/${i}` },
    h('div', { class: 'card-head' }, h('h3', {}, h('code', {}, f.code)), badge(f.severity), f.loses && badge('danger', 'can lose jobs')),
    facts([['Server', f.server], ['Found', f.found], ['Risk', f.risk], ['Remedy', f.remedy]]))
  const card = (s) => h('article', { class: 'card', 'data-key': s.store },
    h('div', { class: 'card-head' }, h('h2', {}, s.store), !s.findings.length && !s.error && badge('none', 'nothing found')),
    s.error && h('p', { class: 'problem' }, s.error),
    s.refused && h('p', { class: 'problem' }, `Requests with a key are refused: ${s.refused}`),
    facts([['Runs on', s.about.length ? h('ul', { class: 'plain' }, s.about.map((a) => h('li', {}, a))) : ''], ['Inspected', s.inspected && time(s.inspected)]]),
    s.findings.length > 0 && h('ul', { class: 'findings' }, s.findings.map(finding)))
  const load = async () => { answer = await get('doctor', {}, 180e3); return '' }
  return {
    title: () => 'Stores',
    // Each look makes the gateway inspect them, so that it is taken when asked for.
    load: async ({ entered } = {}) => entered || !answer ? load() : '',
    actions: { inspect: load },
    view: () => [
      h('div', { class: 'card-head', 'data-key': 'head' }, h('h1', {}, 'Stores'), h('button', { type: 'button', 'data-action': 'inspect' }, 'Inspect again')),
      !answer ? h('p', { class: 'empty' }, 'Inspecting …') : answer.stores.map(card),
    ],
  }
})()
