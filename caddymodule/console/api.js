// Calls of the gateway's API, which is that of the command line.

const base = new URL('_api/', document.baseURI)

// CallError is a call that was not done, and why.
export class CallError extends Error {
  constructor(message, status, answer) {
    super(message)
    this.status = status
    this.code = answer?.code ?? ''
    this.job = answer?.job // as it is at present, where it is the reason
  }
}

// gatewayTime is the gateway's clock as of its last answer: the browser's may be wrong.
export let gatewayTime = Date.now()

const unanswered = (error) => new CallError(error.name === 'TimeoutError' ? 'The gateway does not answer.' : 'The gateway can’t be reached.', 0)

async function call(path, options) {
  let response
  try {
    response = await fetch(new URL(path, base), { cache: 'no-store', credentials: 'same-origin', redirect: 'manual', ...options })
  } catch (error) {
    throw unanswered(error)
  }
  if (response.type === 'opaqueredirect' || response.status === 401) {
    throw new CallError('You are not signed in any more. Load the page again.', 401)
  }
  const date = Date.parse(response.headers.get('Date') ?? '')
  if (!Number.isNaN(date)) gatewayTime = date
  const answer = await response.json().catch((error) => { if (error.name !== 'SyntaxError') throw unanswered(error) })
  if (!response.ok) throw new CallError(answer?.error ?? `The gateway answers with status ${response.status}.`, response.status, answer)
  if (answer === undefined) throw new CallError('What the gateway answers is not understood.', response.status)
  return answer
}

// get asks for something, for so many milliseconds at most: on a connection that is gone
// without a word there would never be an answer, and what is shown would look like news.
export const get = (path, query, most = 30e3) => {
  const search = new URLSearchParams(Object.entries(query ?? {}).filter(([, value]) => value))
  return call(search.size ? `${path}?${search}` : path, { signal: AbortSignal.timeout(most) })
}

export const post = (path, body) => call(path, {
  method: 'POST',
  headers: { 'Content-Type': 'application/json', 'Idempotency-Console': '1' },
  body: JSON.stringify(body),
})

export const jobPath = (store, id, what) =>
  `jobs/${encodeURIComponent(id)}${what ? '/' + what : ''}?${new URLSearchParams({ store })}`

// jobs gets the first so many jobs. A page of the API can be short though there are more.
export async function jobs(query, most) {
  const all = []
  let cursor = ''
  do {
    const page = await get('jobs', { ...query, limit: String(Math.min(most - all.length, 1000)), cursor })
    all.push(...page.jobs)
    cursor = page.next ?? ''
  } while (cursor && all.length < most)
  return { jobs: all, more: cursor !== '' }
}
