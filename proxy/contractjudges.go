package proxy

import (
	"errors"
	"runtime"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// A schema whose alternatives refer to the schema itself is applied to one place of a
// document once for each way that leads there: twice as often with every level of
// nesting, so that some hundred bytes of an honest answer would take hours. So the
// steps are counted. They are these for a document, and these for each value in it.
const (
	stepsForDocument = 100_000
	stepsForValue    = 100
)

// errTooManySteps is what the judging of a document panics with: nothing else ends it.
var errTooManySteps = errors.New("it takes too many steps")

// steps are how often a schema may yet be applied to something. It stands in each
// part of one compiled schema.
type steps struct{ left int }

// Validate implements [jsonschema.SchemaExt].
func (s *steps) Validate(*jsonschema.ValidatorContext, any) {
	if s.left--; s.left < 0 {
		panic(errTooManySteps)
	}
}

// judge is a schema, compiled with steps of its own. It judges one document at a time.
type judge struct {
	compiled *jsonschema.Schema
	steps    *steps
}

// judges are the same schema several times, as many as can be at work at once.
type judges struct {
	location  string
	documents map[string]any
	idle      chan *judge
	unmade    chan struct{} // one for each that may yet be compiled
}

// newJudges compiles a schema that is read by the loader.
func newJudges(location string, loader *schemaLoader) (*judges, error) {
	most := runtime.GOMAXPROCS(0)
	all := &judges{location: location, documents: loader.documents, idle: make(chan *judge, most), unmade: make(chan struct{}, most)}
	// What a vocabulary is added to is checked less strictly.
	if _, err := newCompiler(loader).Compile(location); err != nil {
		return nil, err
	}
	first, err := newJudge(location, readBefore(loader.documents))
	if err != nil {
		return nil, err
	}
	all.idle <- first
	for range most - 1 {
		all.unmade <- struct{}{}
	}
	return all, nil
}

func newCompiler(loader jsonschema.URLLoader) *jsonschema.Compiler {
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	compiler.UseLoader(loader)
	return compiler
}

func newJudge(location string, loader jsonschema.URLLoader) (*judge, error) {
	j := &judge{steps: new(steps)}
	compiler := newCompiler(loader)
	compiler.RegisterVocabulary(&jsonschema.Vocabulary{
		URL:     "urn:idempotency:steps",
		Compile: func(*jsonschema.CompilerContext, map[string]any) (jsonschema.SchemaExt, error) { return j.steps, nil },
	})
	compiler.AssertVocabs()
	var err error
	j.compiled, err = compiler.Compile(location)
	return j, err
}

// readBefore are the documents that the first of the judges was compiled from.
type readBefore map[string]any

// Load implements [jsonschema.URLLoader].
func (r readBefore) Load(location string) (any, error) {
	if document, ok := r[location]; ok {
		return document, nil
	}
	return nil, errForeignSchema
}

// validate judges a document as soon as a judge is idle. It panics with
// errTooManySteps where that takes too long.
func (all *judges) validate(document any) error {
	j := all.take()
	defer func() { all.idle <- j }()
	j.steps.left = stepsForDocument + stepsForValue*values(document)
	return j.compiled.Validate(document)
}

func (all *judges) take() *judge {
	select {
	case j := <-all.idle:
		return j
	default:
	}
	select {
	case j := <-all.idle:
		return j
	case <-all.unmade:
		if j, err := newJudge(all.location, readBefore(all.documents)); err == nil {
			return j
		}
		return <-all.idle // it was compiled before, so that this doesn't happen
	}
}

// values counts the values in a document.
func values(document any) int {
	n := 1
	switch v := document.(type) {
	case []any:
		for _, item := range v {
			n += values(item)
		}
	case map[string]any:
		for _, member := range v {
			n += values(member)
		}
	}
	return n
}
