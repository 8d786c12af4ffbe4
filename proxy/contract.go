package proxy

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// ContractRules say what the providers of a route have to honour. What is left
// empty is not asked for.
type ContractRules struct {
	// Statuses are those that may answer, out of 200 to 299.
	Statuses []int
	// Schema is the file of a JSON Schema for the body.
	Schema string
	// RequireHeaders are fields that an answer must have.
	RequireHeaders []RequiredHeader
	// MaxSize of a body, in bytes.
	MaxSize int64
	// Cases are the files of recorded cases; see [ParseCases].
	Cases []string
	// ViolationFails says that an answer that breaks the contract had no effect.
	ViolationFails bool
}

// RequiredHeader is a field that an answer must have, with this value if it is
// not empty. A media type without parameters allows any.
type RequiredHeader struct{ Name, Value string }

// Contract judges the answers of a route's providers.
type Contract struct {
	rules  ContractRules
	schema *schema
	cases  []*Case
	digest keystore.Digest
}

// NewContract compiles the rules. It reads the files they name, and no others
// but those beside them that these refer to; never the network.
func NewContract(rules ContractRules) (*Contract, error) {
	c := &Contract{rules: rules}
	for _, status := range rules.Statuses {
		if status < 200 || status > 299 {
			return nil, fmt.Errorf("status %d: a contract judges answers of 200 to 299; what others mean is said by outcome", status)
		}
	}
	for _, h := range rules.RequireHeaders {
		if !httpguts.ValidHeaderFieldName(h.Name) || !httpguts.ValidHeaderFieldValue(h.Value) {
			return nil, fmt.Errorf("required header %q: not a field of HTTP", h.Name)
		}
	}
	if rules.MaxSize < 0 {
		return nil, errors.New("the maximum size is negative")
	}
	var about strings.Builder
	fmt.Fprintf(&about, "contract 1\n%d\n%q\n%d\n%t\n", rules.Statuses, rules.RequireHeaders, rules.MaxSize, rules.ViolationFails)
	if rules.Schema != "" {
		s, err := compileSchema(rules.Schema)
		if err != nil {
			return nil, err
		}
		c.schema = s
		fmt.Fprintln(&about, s.sum)
	}
	for _, file := range rules.Cases {
		cases, sum, err := readCases(file)
		if err != nil {
			return nil, err
		}
		c.cases = append(c.cases, cases...)
		fmt.Fprintln(&about, sum)
	}
	c.digest = keystore.DigestOf([]byte(about.String()))
	return c, nil
}

// Digest tells this contract from others, its files included.
func (c *Contract) Digest() keystore.Digest { return c.digest }

// Cases are the recorded cases, in the order of their files.
func (c *Contract) Cases() []*Case { return c.cases }

// OutcomeOfViolation is what an answer says that breaks the contract.
func (c *Contract) OutcomeOfViolation() keystore.Outcome {
	if c.rules.ViolationFails {
		return keystore.OutcomeFailed
	}
	return keystore.OutcomeUnknown
}

// Judge returns how a complete answer breaks the contract, or nil. Only those of
// 200 to 299 can: an honest refusal is none of the contract's business. It shows
// nothing of the answer that could be somebody's data.
func (c *Contract) Judge(answer *keystore.Response) *keystore.Violation {
	return c.judge(answer, false)
}

// judge is Judge, which openly shows what was found.
func (c *Contract) judge(answer *keystore.Response, openly bool) *keystore.Violation {
	if answer.Status < 200 || answer.Status > 299 {
		return nil
	}
	if len(c.rules.Statuses) > 0 && !slices.Contains(c.rules.Statuses, answer.Status) {
		return &keystore.Violation{Expected: "status " + orList(c.rules.Statuses), Found: "status " + strconv.Itoa(answer.Status)}
	}
	for _, want := range c.rules.RequireHeaders {
		if v := want.judge(http.Header(answer.Header)); v != nil {
			return v
		}
	}
	if limit := c.rules.MaxSize; limit > 0 && answer.Size > limit {
		return &keystore.Violation{Expected: fmt.Sprintf("at most %s", count(int(limit), "byte")), Found: strconv.FormatInt(answer.Size, 10)}
	}
	if c.schema == nil {
		return nil
	}
	return c.judgeBody(answer, openly)
}

func (c *Contract) judgeBody(answer *keystore.Response, openly bool) *keystore.Violation {
	bodiless := answer.Status == http.StatusNoContent || answer.Status == http.StatusResetContent
	if bodiless && answer.Size == 0 && slices.Contains(c.rules.Statuses, answer.Status) {
		return nil // allowed by its number, and there is nothing to judge
	}
	if answer.NotKept || int64(len(answer.Body)) != answer.Size {
		return &keystore.Violation{Expected: "a body within the response limit", Found: count(int(answer.Size), "byte")}
	}
	header := http.Header(answer.Header)
	for _, coding := range header.Values("Content-Encoding") {
		if !strings.EqualFold(strings.TrimSpace(coding), "identity") && coding != "" {
			return &keystore.Violation{Expected: "a body without content coding", Found: "one with"}
		}
	}
	if len(answer.Body) > 0 && !isJSON(header.Get("Content-Type")) {
		return &keystore.Violation{Expected: "Content-Type: application/json, or one that ends in +json", Found: shownType(header.Get("Content-Type"))}
	}
	known := c.schema.known
	if openly {
		known = nil
	}
	document, violation := parseDocument(answer.Body, known)
	switch {
	case violation != nil && openly:
		return showBody(violation, answer.Body)
	case violation != nil:
		return violation
	}
	return c.schema.judge(document, openly)
}

func (want RequiredHeader) judge(h http.Header) *keystore.Violation {
	values := h.Values(want.Name)
	expected := "header " + want.Name
	switch {
	case len(values) == 0:
		return &keystore.Violation{Expected: expected, Found: "none"}
	case want.Value != "" && !slices.ContainsFunc(values, want.matches):
		return &keystore.Violation{Expected: expected + ": " + want.Value, Found: "another value"}
	}
	return nil
}

// matches compares a field's value.
func (want RequiredHeader) matches(value string) bool {
	if value = strings.TrimSpace(value); value == want.Value {
		return true
	}
	if !strings.EqualFold(want.Name, "Content-Type") || strings.Contains(want.Value, ";") {
		return false
	}
	mediaType, _, err := mime.ParseMediaType(value)
	return err == nil && strings.EqualFold(mediaType, want.Value)
}

// shownType shows a media type that a peer has sent.
func shownType(contentType string) string {
	mediaType, _, err := mime.ParseMediaType(contentType)
	switch {
	case contentType == "":
		return "no media type"
	case err != nil || len(mediaType) > 80:
		return "another one"
	}
	return mediaType
}

func orList(statuses []int) string {
	texts := make([]string, len(statuses))
	for i, status := range statuses {
		texts[i] = strconv.Itoa(status)
	}
	return strings.Join(texts, " or ")
}
