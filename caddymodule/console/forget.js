// The decision that a completed job is to be remembered no longer.

import { jobPath, post } from './api.js'
import { actor, actorOf, ask, refusal, subject } from './dialog.js'
import { h } from './dom.js'
import { size } from './words.js'

// forget asks whether the job is to be forgotten, and has it dropped. It tells whether
// it was.
export function forget(job, session) {
  return ask({
    title: 'Forget this job?',
    about: [
      subject(job),
      h('p', {}, `The job and its answer, status ${job.result.status} with ${size(job.result.size)}, are dropped, and its key is new: a request that comes with it is executed, whatever it asks for.`),
      actor(session),
      h('label', { class: 'choice confirm' }, h('input', { type: 'checkbox', name: 'sure', required: true }),
        h('span', {}, 'It may be executed a second time. A client that still repeats this request makes that happen.')),
      h('p', { class: 'hint' }, session.unprotected ? 'Your name is logged.' : `Logged as decided by ${session.user}.`, ' Another gateway that has just replayed the answer can go on doing so for some seconds.'),
    ],
    button: 'Forget',
    submit: async (form) => { await post(jobPath(job.store, job.id, 'forget'), { actor: actorOf(form) }); return true },
    instead: (error) => error.job &&
      refusal(error, 'Only a completed job can be forgotten, and only while none of its attempts may still report: nobody would remember what its answer belongs to.'),
  })
}
