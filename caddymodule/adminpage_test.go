package caddymodule

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/caddy-idempotency/caddy-idempotency/internal/pages"
)

// The page with the admin API and the commands has all of them.
func TestAdminPage(t *testing.T) {
	t.Parallel()
	page := pages.Of(t, "..", "docs/admin.md")

	var said, is []string
	source := readFile(t, "admin.go")
	for _, found := range regexp.MustCompile(`//\t(GET|POST) +(/idempotency/\S+) `).FindAllStringSubmatch(source, -1) {
		is = append(is, found[1]+" "+found[2])
	}
	for _, row := range tableOf(t, page.Section(t, "## Calls"), "call") {
		said = append(said, names(row[0])...)
		method, path, _ := strings.Cut(strings.Trim(row[0], "`"), " ")
		if op := adminOperationAt(strings.TrimPrefix(path, adminPrefix)); path != adminPrefix+"ready" && (op == nil || op.method != method) {
			t.Errorf("there is no call %s", row[0])
		}
		for what, body := range map[string]any{"find": findRequest{}, "resolve": resolveRequest{}, "forget": forgetRequest{}, "prove": proveRequest{}} {
			if strings.HasSuffix(path, "/"+what) {
				takes := slices.DeleteFunc(names(row[2]), func(name string) bool { return name == "succeeded" })
				wantSame(t, what, takes, fieldsOf(body))
			}
		}
	}
	wantSame(t, "calls", said, is)

	said = nil
	for _, row := range tableOf(t, page.Section(t, "### A job"), "member") {
		said = append(said, names(row[0])...)
		if name := names(row[0])[0]; name == "request" || name == "result" {
			said = append(said, names(row[1])...)
		}
	}
	is = fieldsOf(jobView{}, requestView{}, resultView{})
	wantSame(t, "a job", said, is)

	said = nil
	for _, row := range tableOf(t, page.Section(t, "### An attempt"), "member") {
		said = append(said, names(row[0])...)
		if name := names(row[0])[0]; name != "state" {
			said = append(said, names(row[1])...)
		}
	}
	is = fieldsOf(attemptView{}, evidenceView{}, violationView{}, keptView{}, resolutionView{}, lookupsView{})
	wantSame(t, "an attempt", said, is)

	said = slices.DeleteFunc(names(page.Section(t, "### A response").Text), func(name string) bool { return name == "resolve" || name == "response" })
	wantSame(t, "a response", said, fieldsOf(givenResponse{}))

	checkCommands(t, page.Section(t, "## Commands"))

	said, is = nil, nil
	for _, row := range tableOf(t, page.Section(t, "### Errors"), "code") {
		said = append(said, strings.Trim(row[0], "`")+" "+row[1])
	}
	for _, found := range regexp.MustCompile(`code\w+ += "([a-z-]+)" +// (\d+)`).FindAllStringSubmatch(readFile(t, "adminerror.go"), -1) {
		is = append(is, found[1]+" "+found[2])
	}
	wantSame(t, "errors", said, is)
}

func flagsIn(usages string) (flags []string) {
	for _, found := range regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z-]+)`).FindAllStringSubmatch(usages, -1) {
		flags = append(flags, found[1])
	}
	return flags
}

func checkCommands(t *testing.T, section pages.Page) {
	t.Helper()
	parent := new(cobra.Command)
	new(cli).commands(parent)
	var said, is []string
	for _, row := range tableOf(t, section, "command") {
		name := names(row[0])[0]
		said = append(said, name)
		var flags []string
		for _, command := range parent.Commands() {
			if command.Name() == name {
				flags = flagsIn(command.Flags().FlagUsages())
			}
		}
		wantSame(t, name, names(row[len(row)-1]), flags)
	}
	for _, command := range parent.Commands() {
		is = append(is, command.Name())
	}
	wantSame(t, "commands", said, is)
	for _, flag := range flagsIn(parent.PersistentFlags().FlagUsages()) {
		if !strings.Contains(section.Text, "`"+flag+"`") {
			t.Errorf("%s is not on the page", flag)
		}
	}
	for _, found := range regexp.MustCompile(`(?m)^  (\d)  `).FindAllStringSubmatch(exitCodesHelp, -1) {
		if !regexp.MustCompile(`\| [0-9, ]*` + found[1] + `[0-9, ]* \|`).MatchString(section.Text) {
			t.Errorf("exit code %s is not on the page", found[1])
		}
	}
}
