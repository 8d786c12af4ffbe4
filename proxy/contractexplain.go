package proxy

import (
	"fmt"
	"math/big"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// choice reports whether an error stands for all below it: which of several
// alternatives was meant, nobody knows.
func choice(k jsonschema.ErrorKind) bool {
	switch k.(type) {
	case *kind.AnyOf, *kind.OneOf, *kind.Not, *kind.Contains, *kind.MinContains, *kind.MaxContains, *kind.PropertyNames:
		return true
	}
	return false
}

// explain says what the schema expected and what kind of thing was found instead.
// What it expected stands in the schema; of the document nothing is shown but
// kinds and sizes.
func explain(e *jsonschema.ValidationError, value any) (expected, found string) {
	found = kindOf(value)
	switch k := e.ErrorKind.(type) {
	case *kind.Type:
		if found == "number" && len(k.Want) == 1 && k.Want[0] == "integer" {
			found = "number with a fraction"
		}
		return strings.Join(k.Want, " or "), found
	case *kind.Enum:
		return "one of " + fromSchema(k.Want...), "another " + found
	case *kind.Const:
		return fromSchema(k.Want), "another " + found
	case *kind.Format:
		return "format " + k.Want, found
	case *kind.Pattern:
		return "pattern " + k.Want, found
	case *kind.Required:
		return "the members " + fromSchema(list(k.Missing)...), "an object without them"
	case *kind.Dependency:
		return "the members " + fromSchema(list(k.Missing)...), "an object without them"
	case *kind.DependentRequired:
		return "the members " + fromSchema(list(k.Missing)...), "an object without them"
	case *kind.AdditionalProperties:
		return "no members but those of the schema", count(len(k.Properties), "other")
	case *kind.AdditionalItems:
		return "no items but those of the schema", count(k.Count, "other")
	case *kind.FalseSchema:
		return "nothing here", found
	case *kind.PropertyNames:
		return "member names that the schema allows", "another one"
	case *kind.UniqueItems:
		return "items that are all different", fmt.Sprintf("items %d and %d are equal", k.Duplicates[0], k.Duplicates[1])
	case *kind.AnyOf:
		return "one of the schema's alternatives (anyOf)", found
	case *kind.OneOf:
		if len(k.Subschemas) > 1 {
			return "only one of the schema's alternatives (oneOf)", found + " that fits several"
		}
		return "one of the schema's alternatives (oneOf)", found
	case *kind.Not:
		return "anything but that (not)", found
	case *kind.Contains, *kind.MinContains, *kind.MaxContains:
		return "the items that the schema wants in it (contains)", found
	}
	if bound, ok := boundOf(e.ErrorKind); ok {
		return bound, found
	}
	return strings.Join(e.ErrorKind.KeywordPath(), "/"), found
}

// boundOf says which bound the schema sets.
func boundOf(k jsonschema.ErrorKind) (bound string, ok bool) {
	switch k := k.(type) {
	case *kind.MinLength:
		return fmt.Sprintf("at least %s", count(k.Want, "character")), true
	case *kind.MaxLength:
		return fmt.Sprintf("at most %s", count(k.Want, "character")), true
	case *kind.MinItems:
		return fmt.Sprintf("at least %s", count(k.Want, "item")), true
	case *kind.MaxItems:
		return fmt.Sprintf("at most %s", count(k.Want, "item")), true
	case *kind.MinProperties:
		return fmt.Sprintf("at least %s", count(k.Want, "member")), true
	case *kind.MaxProperties:
		return fmt.Sprintf("at most %s", count(k.Want, "member")), true
	case *kind.Minimum:
		return "at least " + decimal(k.Want), true
	case *kind.Maximum:
		return "at most " + decimal(k.Want), true
	case *kind.ExclusiveMinimum:
		return "more than " + decimal(k.Want), true
	case *kind.ExclusiveMaximum:
		return "less than " + decimal(k.Want), true
	case *kind.MultipleOf:
		return "a multiple of " + decimal(k.Want), true
	}
	return "", false
}

// decimal shows a number as a schema can have written it.
func decimal(r *big.Rat) string {
	digits, exact := r.FloatPrec()
	if !exact {
		return r.RatString()
	}
	return r.FloatString(digits)
}

func list(texts []string) []any {
	values := make([]any, len(texts))
	for i, text := range texts {
		values[i] = text
	}
	return values
}
