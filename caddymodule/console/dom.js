// Elements, and how a view is brought up to date without taking away what somebody
// is looking at: the focus, a selection, an open part.

const SVG = 'http://www.w3.org/2000/svg'
const svgNames = new Set(['svg', 'g', 'path', 'rect', 'line', 'text', 'title'])

// h makes an element. Texts stay texts whatever is in them: nothing is ever parsed.
export function h(name, attributes, ...children) {
  const e = svgNames.has(name) ? document.createElementNS(SVG, name) : document.createElement(name)
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue
    // The page's policy forbids style attributes, as it should: this is a property.
    if (key === 'style') for (const [property, to] of Object.entries(value)) e.style.setProperty(property, to)
    else e.setAttribute(key, value === true ? '' : value)
  }
  append(e, children)
  return e
}

// plain shows what would else be unseen and turn round or hide what is next to it: a
// label that reads order-17 is to be one.
export const plain = (text) => text.replace(/[^\P{C}\t\n\r]|[\p{Zl}\p{Zp}]/gu, '\ufffd')

function append(e, children) {
  for (const child of children) {
    if (child === undefined || child === null || child === false || child === '') continue
    if (Array.isArray(child)) append(e, child)
    else e.append(typeof child === 'string' ? plain(child) : child)
  }
}

// show makes the children of an element what they should be.
export function show(element, ...children) {
  const fresh = element.cloneNode(false)
  append(fresh, children)
  morphChildren(element, fresh)
}

function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data
    return
  }
  for (const { name } of [...old.attributes]) {
    // What is open was opened by somebody.
    if (name !== 'open' && !fresh.hasAttribute(name)) old.removeAttribute(name)
  }
  for (const { name, value } of fresh.attributes) {
    if (name !== 'style' && name !== 'open' && old.getAttribute(name) !== value) old.setAttribute(name, value)
  }
  if (old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText
  // What was typed or chosen is somebody's too.
  if (old.tagName !== 'SELECT') morphChildren(old, fresh)
}

function morphChildren(old, fresh) {
  let at = old.firstChild
  for (const wanted of [...fresh.childNodes]) {
    const key = wanted.dataset?.key
    let found = at
    if (key) while (found && found.dataset?.key !== key) found = found.nextSibling
    else if (at?.dataset?.key) found = null
    if (!found || found.nodeName !== wanted.nodeName) {
      old.insertBefore(wanted, at)
      continue
    }
    // What is in between has gone, or has moved on to be found later.
    while (at !== found) {
      const gone = at
      at = at.nextSibling
      if (gone.dataset?.key) old.append(gone)
      else gone.remove()
    }
    morph(found, wanted)
    at = found.nextSibling
  }
  while (at) {
    const gone = at
    at = at.nextSibling
    gone.remove()
  }
}
