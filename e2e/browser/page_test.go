package browser

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// look is what a page is looked at with.
type look struct {
	width, height int64
	scheme        string // light or dark
}

var desktop = look{1280, 900, "light"}

// page is the console in a tab, which shares nothing with those of other tests.
type page struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	problems []string
	expected string // what one of the problems may have in it
}

// closeBrowser ends the browser, where there is one.
var closeBrowser = func() {}

// browser starts the browser, once.
var browser = sync.OnceValues(func() (context.Context, error) {
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, // without which root can't run it; it sees nothing but our own pages
		chromedp.DisableGPU,
		chromedp.WSURLReadTimeout(patience),
	)
	if file := os.Getenv("CHROMIUM"); file != "" {
		options = append(options, chromedp.ExecPath(file))
	}
	ctx, _ := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ = chromedp.NewContext(ctx)
	closeBrowser = func() { _ = chromedp.Cancel(ctx) }
	return ctx, chromedp.Do(ctx)
})

// visit opens the console as a person.
func visit(t *testing.T, g *gateway, person string, l look) *page {
	t.Helper()
	ctx, err := browser()
	if err != nil {
		t.Fatalf("start the browser: %v", err)
	}
	ctx, cancel := chromedp.NewContext(ctx, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	p := &page{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, p.listen); err != nil {
		t.Fatalf("open a tab: %v", err)
	}
	call(p, cdplog.Enable, cdp.Empty{})
	call(p, network.Enable, network.EnableParams{})
	p.person(person)
	call(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: l.width, Height: l.height, DeviceScaleFactor: 1, Mobile: l.width < 600,
	})
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: l.scheme}},
	})
	p.do("open the console", chromedp.Navigate(g.url+"/console"))
	t.Cleanup(p.check)
	return p
}

// person makes the page's calls those of a person.
func (p *page) person(name string) {
	p.t.Helper()
	credentials := "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":secret"))
	call(p, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: network.Headers{"Authorization": credentials}})
}

// call makes a call of the browser's protocol.
func call[P, R any](p *page, command cdp.Command[P, R], params P) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if _, err := chromedp.Call(ctx, command, params); err != nil {
		p.t.Fatalf("%s: %v", command.Method, err)
	}
}

// listen keeps what the page has to complain about.
func (p *page) listen(event any) {
	text := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text = e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			text = "console"
			for _, arg := range e.Args {
				text += " " + string(arg.Value) + arg.Description
			}
		}
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == cdplog.EntryLevelError || e.Entry.Level == cdplog.EntryLevelWarning {
			text = e.Entry.Text + " " + e.Entry.URL
		}
	}
	if text != "" {
		p.mu.Lock()
		p.problems = append(p.problems, text)
		p.mu.Unlock()
	}
}

// check says what the page has complained about.
func (p *page) check() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, text := range p.problems {
		if p.expected == "" || !strings.Contains(text, p.expected) {
			p.t.Errorf("the page complains: %s", text)
		}
	}
}

// expect allows problems with this in them.
func (p *page) expect(text string) {
	p.mu.Lock()
	p.expected = text
	p.mu.Unlock()
}

func (p *page) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.t.Fatalf("%s: %v\n%s", what, err, p.text())
	}
}

// text is what the page shows, for errors.
func (p *page) text() string {
	ctx, cancel := context.WithTimeout(p.ctx, 10*time.Second)
	defer cancel()
	text, _ := chromedp.Run(ctx, chromedp.Evaluate[string]("document.body.innerText"))
	return text
}

// eval evaluates an expression of the page.
func eval[T any](p *page, expression string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("%s: %v\n%s", expression, err, p.text())
	}
	return value
}

// wait waits until an expression of the page is true. What it asks for can come late
// under load, and what is shown in between does not matter.
func (p *page) wait(condition string) {
	p.t.Helper()
	deadline := time.Now().Add(patience)
	for !eval[bool](p, "Boolean("+condition+")") {
		if time.Now().After(deadline) {
			p.t.Fatalf("not within %s: %s\n%s", patience, condition, p.text())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// shows waits until the page shows a text.
func (p *page) shows(text string) {
	p.t.Helper()
	p.wait(fmt.Sprintf("document.body.innerText.includes(%s)", quote(text)))
}

// press presses the button, link or label in which a text stands.
func (p *page) press(kind, text string) {
	p.t.Helper()
	p.pressElement(element(kind, text))
}

// pressElement presses what an expression finds, if somebody could: not if something
// covers it. In one step, since the page may draw itself anew at any time.
func (p *page) pressElement(expression string) {
	p.t.Helper()
	p.wait(expression)
	eval[any](p, `(() => {
		const e = `+expression+`
		e.scrollIntoView({ block: 'center', behavior: 'instant' })
		const r = e.getBoundingClientRect()
		const top = document.elementFromPoint(r.x + Math.min(r.width / 2, 60), r.y + r.height / 2)
		if (!e.contains(top) && !top?.contains(e)) throw new Error('covered by ' + top?.outerHTML)
		e.click()
	})()`)
}

// element finds what is visible and has a text.
func element(kind, text string) string {
	return fmt.Sprintf("[...document.querySelectorAll(%s)].find((e) => e.textContent.includes(%s) && e.checkVisibility())", quote(kind), quote(text))
}

// fill types into a field.
func (p *page) fill(selector, text string) {
	p.t.Helper()
	p.do("fill "+selector, chromedp.SendKeys(chromedp.CSS(selector), text))
}

// fillAnew types into a field in place of what is in it.
func (p *page) fillAnew(selector, text string) {
	p.t.Helper()
	eval[any](p, "document.querySelector("+quote(selector)+").select()")
	p.fill(selector, text)
}

// leave leaves a dialog.
func (p *page) leave() {
	p.t.Helper()
	p.do("leave", chromedp.KeyEvent(kb.Escape))
	p.wait("!document.querySelector('dialog')")
}

// shot takes a picture of the whole page, or of the window, if a dialog covers that.
func (p *page) shot(file string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	what := chromedp.FullScreenshot(100)
	if eval[bool](p, "document.querySelector('dialog:modal') !== null") {
		what = chromedp.CaptureScreenshot()
	}
	picture, err := chromedp.Run(ctx, what)
	if err != nil {
		p.t.Fatalf("take a picture: %v", err)
	}
	if err := os.WriteFile(file, picture, 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func quote(s string) string {
	quoted, _ := json.Marshal(s)
	return string(quoted)
}
