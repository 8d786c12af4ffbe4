// What a test measures in the page: an array of what is wrong with it.
((width) => {
  const wrong = []
  const dialog = document.querySelector('dialog[open]')
  const name = (e) => e.outerHTML.slice(0, 120)

  // Nothing is wider than the window. A phone would rather make the window wider.
  const wide = Math.max(document.documentElement.scrollWidth, innerWidth)
  if (wide > width) wrong.push(`the page is ${wide} px wide in a window of ${width}: ` +
    [...document.querySelectorAll('*')].filter((e) => e.getBoundingClientRect().right > width + 1).slice(0, 3).map(name).join(' '))

  // Every control says what it is, and nothing is there twice.
  for (const e of document.querySelectorAll('button, input, select, textarea, a, dialog, table, [role=img], [role=search]')) {
    const by = e.getAttribute('aria-labelledby')
    const text = by ? document.getElementById(by)?.textContent : e.getAttribute('aria-label') ?? [...e.labels ?? []].map((l) => l.textContent).join(' ') + e.textContent
    if (e.getAttribute('role') !== 'search' && !text?.trim()) wrong.push(`has no name: ${name(e)}`)
  }
  const ids = [...document.querySelectorAll('[id]')].map((e) => e.id)
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push(`twice: #${id}`)
  for (const e of document.querySelectorAll('img')) if (!e.hasAttribute('alt')) wrong.push(`has no alt: ${name(e)}`)
  if (document.documentElement.lang !== 'en' || !document.title) wrong.push('has no language or title')
  if (document.querySelectorAll('main h1').length !== 1) wrong.push('has no single main heading')
  let level = 0
  for (const e of document.querySelectorAll('main :is(h1, h2, h3, h4)')) {
    const n = Number(e.tagName[1])
    if (n > level + 1) wrong.push(`after level ${level} comes ${name(e)}`)
    level = n
  }

  // What is to be pressed is large enough for a finger: 24 px, as WCAG 2.2 has it.
  for (const e of document.querySelectorAll('button, input:not([type=radio], [type=checkbox]), select, textarea, nav a')) {
    const r = e.getBoundingClientRect()
    if (e.checkVisibility() && (r.width < 24 || r.height < 24)) wrong.push(`is ${r.width} by ${r.height} px: ${name(e)}`)
  }

  // Text stands out from what it is on, by WCAG's measure.
  const channels = (colour) => {
    const c = document.createElement('canvas').getContext('2d', { willReadFrequently: true })
    c.fillStyle = colour
    c.fillRect(0, 0, 1, 1)
    const [r, g, b, a] = c.getImageData(0, 0, 1, 1).data
    return [r, g, b, a / 255]
  }
  const known = new Map()
  const rgba = (colour) => known.get(colour) ?? known.set(colour, channels(colour)).get(colour)
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1]
  const luminance = (c) => {
    const [r, g, b] = c.map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const contrast = (one, other) => {
    const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a)
    return (high + 0.05) / (low + 0.05)
  }
  const behind = (e) => {
    const layers = []
    for (; e; e = e.parentElement) {
      const c = rgba(getComputedStyle(e).backgroundColor)
      if (c[3] > 0) layers.push(c)
      if (c[3] === 1) break
    }
    return layers.reduceRight((under, layer) => over(layer, under), [255, 255, 255, 1])
  }
  const within = dialog ?? document.body
  const probes = ['unknown', 'running', 'starting', 'succeeded', 'completed', 'failed', 'cancelled', 'discarded', 'open', 'won', 'note', 'warning', 'danger', 'none',
    'proof-primary', 'proof-proven', 'proof-unproven', 'proof-not-needed'].map((state) => {
    const e = document.createElement('span')
    e.className = `badge is-${state}`
    e.textContent = state
    return e
  })
  within.append(...probes)
  let texts = 0
  const walker = document.createTreeWalker(within, NodeFilter.SHOW_TEXT)
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement
    if (!walker.currentNode.data.trim() || !e.checkVisibility({ visibilityProperty: true }) || e.tagName === 'OPTION' || e.tagName === 'TITLE') continue
    const style = getComputedStyle(e), under = behind(e)
    const colour = rgba(e instanceof SVGElement ? style.fill : style.color)
    const ratio = contrast(over(colour, under), under)
    const px = parseFloat(style.fontSize), large = px >= 24 || (px >= 18.66 && Number(style.fontWeight) >= 700)
    texts++
    if (ratio < (large ? 3 : 4.5)) wrong.push(`contrast ${ratio.toFixed(2)}: "${walker.currentNode.data.trim().slice(0, 40)}" in ${name(e)}`)
  }
  for (const e of within.querySelectorAll('input, select, textarea')) {
    if (!e.checkVisibility() || e.type === 'radio' || e.type === 'checkbox') continue
    const under = behind(e.parentElement), ratio = contrast(over(rgba(getComputedStyle(e).borderTopColor), under), under)
    if (ratio < 3) wrong.push(`contrast ${ratio.toFixed(2)} of the border of ${name(e)}`)
  }
  if (texts < 20) wrong.push(`only ${texts} texts were measured`)
  for (const e of probes) e.remove()
  return wrong
})
