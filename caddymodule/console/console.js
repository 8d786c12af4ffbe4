// The console: which view is shown, and when it is brought up to date.

import { get } from './api.js'
import { h, plain, show } from './dom.js'
import { providers, stores } from './health.js'
import * as job from './job.js'
import * as jobs from './jobs.js'

const every = 3000 // milliseconds between looks
const decisions = new Set(['resolve', 'forget']) // what they change is to be seen at once

const main = document.getElementById('main')
const part = (id) => document.getElementById(id)
let view, name, session
let sure = false // whether the session is still that
let paused = false
let timer
let turn = 0 // grows with each look, so that an answer that comes late is not shown

const links = [['jobs', '#/', 'Jobs'], ['providers', '#/providers', 'Providers'], ['stores', '#/stores', 'Stores']]

// route finds the view that the address stands for.
function route() {
  const [, where, store, id] = location.hash.split('/').map((word) => { try { return decodeURIComponent(word) } catch { return word } })
  if (where === 'job' && id) {
    job.open(store, id)
    return ['jobs', job, `job/${store}/${id}`]
  }
  if (where === 'providers') return ['providers', providers, 'providers']
  if (where === 'stores') return ['stores', stores, 'stores']
  return ['jobs', jobs, 'jobs']
}

function enter() {
  const [tab, next, key] = route()
  const first = view === undefined
  view = next
  name = key
  show(part('nav'), links.map(([id, href, text]) => h('a', { href, 'aria-current': id === tab ? 'page' : false }, text)))
  draw()
  // Whoever goes to another view is at its beginning, also without seeing it.
  if (!first) { main.focus({ preventScroll: true }); scrollTo(0, 0) }
  look({ entered: true })
}

function draw() {
  document.title = plain(`${view.title()} · Idempotency console`)
  show(main, h('div', { class: 'view', 'data-key': name }, view.view(main.clientWidth)))
}

function say(text) {
  if (text) part('said').textContent = text
}

function complain(error) {
  const text = error?.message ?? ''
  const alert = part('alert')
  if (alert.textContent !== text) alert.textContent = text
  alert.hidden = text === ''
  document.body.classList.toggle('stale', text !== '')
  if (!paused) part('live').textContent = text ? 'No answer' : 'Live'
}

async function look(how) {
  clearTimeout(timer)
  const mine = ++turn
  try {
    if (!sure) session = await get('session')
    sure = true
    part('user').textContent = session.user ?? 'unprotected'
    const news = await view.load(how)
    if (mine !== turn) return
    complain()
    draw()
    say(news)
  } catch (error) {
    if (mine !== turn) return
    sure = false // it may be somebody else who is served again
    complain(error)
    draw()
  }
  if (!paused && document.visibilityState === 'visible') timer = setTimeout(look, every)
}

// act lets somebody's doing take its course, and shows what has come of it.
async function act(doing) {
  try {
    const done = doing()
    draw()
    say(await done)
    complain()
  } catch (error) {
    complain(error)
  }
  draw()
}

document.addEventListener('click', (event) => {
  const target = event.target.closest('[data-action]')
  const action = target && view.actions?.[target.dataset.action]
  if (!action) return
  event.preventDefault()
  act(() => action(target, session)).then(() => { if (decisions.has(target.dataset.action)) look() })
})

document.addEventListener('change', (event) => {
  const change = view.changes?.[event.target.dataset.change]
  if (change) act(() => change(event.target))
})

document.addEventListener('submit', (event) => {
  const submit = view.submits?.[event.target.dataset.submit]
  if (!submit) return
  event.preventDefault()
  act(() => submit(event.target))
})

part('pause').addEventListener('click', () => {
  paused = !paused
  part('pause').setAttribute('aria-pressed', String(paused))
  part('live').textContent = paused ? 'Paused' : 'Live'
  document.body.classList.toggle('paused', paused)
  if (paused) clearTimeout(timer)
  else look()
})

document.querySelector('.skip').addEventListener('click', (event) => {
  event.preventDefault() // the address stands for the view
  main.focus()
})
document.addEventListener('visibilitychange', () => { if (!paused && document.visibilityState === 'visible') look() })
addEventListener('hashchange', enter)
addEventListener('resize', draw)

enter()
