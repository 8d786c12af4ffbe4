// Package packaging_test checks what the product is shipped in as far as that can be
// done without a container engine, a cluster or an init system.
package packaging_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

func read(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{".."}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// find returns what the first group of a pattern matches in a text.
func find(t *testing.T, text, pattern string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)` + pattern).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("nothing matches %s in\n%s", pattern, text)
	}
	return found[1]
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// wantTimeToEnd checks that a process that is told to end gets the time that its
// configuration wants, and that this is enough for its attempts.
func wantTimeToEnd(t *testing.T, what, caddyfile string, killedAfter time.Duration) {
	t.Helper()
	delay := duration(t, find(t, caddyfile, `^\s*shutdown_delay (\S+)$`))
	grace := duration(t, find(t, caddyfile, `^\s*grace_period (\S+)$`))
	timeout := duration(t, find(t, caddyfile, `^\s*timeout (\S+)$`))
	if grace <= timeout {
		t.Errorf("%s: grace_period %s does not let attempts end that may take %s", what, grace, timeout)
	}
	if killedAfter <= delay+grace {
		t.Errorf("%s: it is killed after %s, before shutdown_delay %s and grace_period %s are over", what, killedAfter, delay, grace)
	}
}

// The image is built by the version of Go that the module needs, from what there is,
// and has what it starts.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	dockerfile := read(t, "Dockerfile")
	needed := find(t, read(t, "go.mod"), `^go (\d+\.\d+)`)
	if has := find(t, dockerfile, `^FROM golang:(\d+\.\d+)-`); has != needed {
		t.Errorf("it is built by Go %s; go.mod needs %s", has, needed)
	}
	allowed := read(t, ".dockerignore")
	var sources []string
	stages := make(map[string]bool)
	made := make(map[string]bool) // in stages before
	copied := make(map[string]bool)
	for line := range strings.Lines(strings.ReplaceAll(dockerfile, "\\\n", " ")) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		var plain []string
		from := ""
		for _, word := range words[1:] {
			if stage, given := strings.CutPrefix(word, "--from="); given {
				from = stage
			} else if !strings.HasPrefix(word, "--") {
				plain = append(plain, word)
			}
		}
		switch words[0] {
		case "FROM":
			if len(words) == 4 && words[2] == "AS" {
				stages[words[3]] = true
			}
		case "RUN":
			for _, path := range regexp.MustCompile(`/out/\w+`).FindAllString(line, -1) {
				made[path] = true
			}
		case "COPY":
			target := plain[len(plain)-1]
			copied[target] = true
			for _, source := range plain[:len(plain)-1] {
				if from != "" {
					if !stages[from] || !made[source] {
						t.Errorf("%s: there is no such stage, or it does not make that", strings.TrimSpace(line))
					}
					continue
				}
				sources = append(sources, source)
				if _, err := os.Stat(filepath.Join("..", source)); err != nil {
					t.Errorf("%s: %v", strings.TrimSpace(line), err)
				}
				if !strings.Contains("\n"+allowed, "\n!"+source+"\n") {
					t.Errorf("%s: .dockerignore leaves that out", strings.TrimSpace(line))
				}
			}
		case "ARG", "ENV", "WORKDIR", "VOLUME", "EXPOSE", "CMD":
		case "ENTRYPOINT":
			if program := find(t, line, `"([^"]+)"`); !copied[program] {
				t.Errorf("%s is not in the image", program)
			}
		default:
			t.Errorf("%s: not known to this test", words[0])
		}
	}
	checkSources(t, sources)
	version := find(t, read(t, "compose.yaml"), `image: caddy-idempotency:(\S+)$`)
	for _, path := range []string{"compose.yaml", "packaging/kubernetes/gateway.yaml"} {
		for _, found := range regexp.MustCompile(`image: caddy-idempotency:(\S+)`).FindAllStringSubmatch(read(t, path), -1) {
			if found[1] != version {
				t.Errorf("%s runs version %s, and compose.yaml %s", path, found[1], version)
			}
		}
	}
	for _, path := range []string{"CHANGELOG.md", "docs/upgrading.md"} {
		if !strings.Contains(read(t, path), version) {
			t.Errorf("%s says nothing of version %s", path, version)
		}
	}
	if !regexp.MustCompile(`FROM \S+:nonroot`).MatchString(dockerfile) {
		t.Error("the image runs as root")
	}
}

// checkSources checks that the module can be built of what is copied for that.
func checkSources(t *testing.T, sources []string) {
	t.Helper()
	dir := t.TempDir()
	for _, source := range sources {
		err := filepath.WalkDir(filepath.Join("..", source), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return fs.SkipDir
			case d.IsDir() || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			to := filepath.Join(dir, strings.TrimPrefix(path, ".."+string(filepath.Separator)))
			if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
				return err
			}
			content, err := os.ReadFile(path) //nolint:gosec // of this checkout
			if err != nil {
				return err
			}
			return os.WriteFile(to, content, 0o600)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	list := exec.Command("go", "list", "-deps", "./caddymodule")
	list.Dir = dir
	if out, err := list.CombinedOutput(); err != nil {
		t.Errorf("it can't be built of %q: %v\n%s", sources, err, out)
	}
}

// documents parses a YAML file into what it has in it, none of it twice.
func documents[T any](t *testing.T, path ...string) (all []T) {
	t.Helper()
	d := yaml.NewDecoder(bytes.NewReader([]byte(read(t, path...))))
	for {
		var one T
		err := d.Decode(&one)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", filepath.Join(path...), err)
		}
		all = append(all, one)
	}
}

// The services of compose.yaml have the files that they speak of, wait for each
// other, and keep in Redis what they acknowledge.
func TestCompose(t *testing.T) {
	t.Parallel()
	type service struct {
		Build, Image string
		Volumes      []string
		Command      []string
		Depends      map[string]any    `yaml:"depends_on"`
		Environment  map[string]string `yaml:"environment"`
		Health       map[string]any    `yaml:"healthcheck"`
		Grace        string            `yaml:"stop_grace_period"`
	}
	all := documents[struct {
		Services map[string]service
		Volumes  map[string]any
	}](t, "compose.yaml")
	if len(all) != 1 || len(all[0].Services) != 3 {
		t.Fatalf("the services are %+v", all)
	}
	c := all[0]
	for name, s := range c.Services {
		if s.Image == "" || strings.HasSuffix(s.Image, ":latest") || !strings.Contains(s.Image, ":") {
			t.Errorf("%s: image %q does not say which version", name, s.Image)
		}
		for _, volume := range s.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			if file, relative := strings.CutPrefix(source, "./"); relative {
				read(t, file)
			} else if _, named := c.Volumes[source]; !named {
				t.Errorf("%s: there is no volume %s", name, source)
			}
		}
		for other := range s.Depends {
			if c.Services[other].Health == nil {
				t.Errorf("%s waits until %s is healthy, which nobody checks", name, other)
			}
		}
	}
	gateway := c.Services["gateway"]
	caddyfile := read(t, "packaging", "compose", "gateway.Caddyfile")
	for _, found := range regexp.MustCompile(`\{env\.(\w+)\}`).FindAllStringSubmatch(caddyfile, -1) {
		host, _, _ := strings.Cut(strings.TrimPrefix(gateway.Environment[found[1]], "redis://"), ":")
		if _, there := c.Services[host]; !there {
			t.Errorf("%s is %q: there is no such service", found[1], gateway.Environment[found[1]])
		}
	}
	wantTimeToEnd(t, "compose.yaml", caddyfile, duration(t, gateway.Grace))
	for _, want := range []string{"--appendonly yes", "--maxmemory-policy noeviction"} {
		if redis := strings.Join(c.Services["redis"].Command, " "); !strings.Contains(redis, want) {
			t.Errorf("redis runs without %s: %s", want, redis)
		}
	}
}

// The manifests ask for readiness where it can be asked for, and give a pod the time
// to end that its configuration wants.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	type probe struct {
		Get struct{ Path, Port string } `yaml:"httpGet"`
	}
	type object struct {
		Kind     string
		Metadata struct{ Name string }
		Data     map[string]string
		Spec     struct {
			Selector map[string]any
			Ports    []struct {
				Target string `yaml:"targetPort"`
			}
			Template struct {
				Spec struct {
					Patience   int `yaml:"terminationGracePeriodSeconds"`
					Containers []struct {
						Ports []struct {
							Name string
							Port int `yaml:"containerPort"`
						}
						Ready  probe `yaml:"readinessProbe"`
						Alive  probe `yaml:"livenessProbe"`
						Mounts []struct {
							Name string
						} `yaml:"volumeMounts"`
					}
					Volumes []struct {
						Name   string
						Config *struct{ Name string } `yaml:"configMap"`
					}
				}
			}
		}
	}
	byKind := make(map[string]object)
	for _, o := range documents[object](t, "packaging", "kubernetes", "gateway.yaml") {
		byKind[o.Kind] = o
	}
	caddyfile := byKind["ConfigMap"].Data["Caddyfile"]
	pod := byKind["Deployment"].Spec.Template.Spec
	wantTimeToEnd(t, "gateway.yaml", caddyfile, time.Duration(pod.Patience)*time.Second)
	if len(pod.Containers) != 1 {
		t.Fatalf("containers: %+v", pod.Containers)
	}
	container := pod.Containers[0]
	ports := make(map[string]int)
	for _, p := range container.Ports {
		ports[p.Name] = p.Port
		if !strings.Contains(caddyfile, "\n:"+strconv.Itoa(p.Port)+" {") {
			t.Errorf("nothing listens on port %d", p.Port)
		}
	}
	if container.Ready.Get.Path != "/idempotency/ready" || ports[container.Ready.Get.Port] == 0 {
		t.Errorf("readiness is asked for at %+v", container.Ready)
	}
	if container.Alive.Get.Path == container.Ready.Get.Path || ports[container.Alive.Get.Port] == 0 {
		t.Errorf("liveness is asked for at %+v: a store that is away must not have the gateway killed", container.Alive)
	}
	volumes := make(map[string]bool)
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		if v.Config != nil && v.Config.Name != byKind["ConfigMap"].Metadata.Name {
			t.Errorf("there is no ConfigMap %s", v.Config.Name)
		}
	}
	for _, m := range container.Mounts {
		if !volumes[m.Name] {
			t.Errorf("there is no volume %s", m.Name)
		}
	}
	if disrupted := byKind["PodDisruptionBudget"].Spec.Selector; !reflect.DeepEqual(disrupted, byKind["Deployment"].Spec.Selector) || len(disrupted) == 0 {
		t.Errorf("the budget is of the pods %v", disrupted)
	}
	for _, p := range byKind["Service"].Spec.Ports {
		if ports[p.Target] == 0 {
			t.Errorf("the service leads to the port %q, which there is not", p.Target)
		}
	}
}

// The unit has what systemd asks for; where that is there, it says so itself.
func TestSystemd(t *testing.T) {
	t.Parallel()
	unit := read(t, "packaging", "systemd", "caddy-idempotency.service")
	sections := regexp.MustCompile(`(?m)^\[(\w+)\]$`).FindAllStringSubmatch(unit, -1)
	if len(sections) != 3 {
		t.Errorf("sections: %v", sections)
	}
	for line := range strings.Lines(unit) {
		if !regexp.MustCompile(`^(#.*|\[\w+\]|[A-Z][A-Za-z]+=\S.*|)\n$`).MatchString(line) {
			t.Errorf("not a line of a unit: %q", line)
		}
	}
	if stop := duration(t, find(t, unit, `^TimeoutStopSec=(\S+)$`)); stop <= 75*time.Second {
		t.Errorf("it is killed after %s, before an attempt may end that takes a minute", stop)
	}
	program := find(t, unit, `^ExecStart=(\S+) `)
	if analyze, err := exec.LookPath("systemd-analyze"); err == nil {
		path := filepath.Join(t.TempDir(), "caddy-idempotency.service")
		there, err := exec.LookPath("true") // in place of what is not installed here
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(unit, program, there)), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(analyze, "verify", path).CombinedOutput(); err != nil {
			t.Errorf("systemd-analyze: %v\n%s", err, out)
		}
	}
}
