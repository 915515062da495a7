package browser

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// run builds a program of the repository, and runs it until the test ends.
func run(t *testing.T, program string, args ...string) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), program)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./cmd/"+program)
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", program, err, out)
	}
	output := filepath.Join(t.TempDir(), program+".log")
	file, err := os.Create(output)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = file.Close()
		if text, err := os.ReadFile(output); t.Failed() && err == nil {
			t.Logf("%s said:\n%s", program, text)
		}
	})
}

// ports returns the first of some ports in a row that nobody listens on.
func ports(t *testing.T, n int) int {
	t.Helper()
next:
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		first := l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
		for i := range n {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+i))
			if err != nil {
				continue next
			}
			_ = l.Close()
		}
		return first
	}
	t.Fatalf("no %d free ports in a row", n)
	return 0
}

// await asks until the answer is a 200 that has a text in it.
func await(t *testing.T, client *http.Client, url, text string) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		r, err := client.Get(url)
		if err != nil {
			last = err.Error()
			continue
		}
		body, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if last = fmt.Sprintf("%s: %s (%v)", r.Status, body, err); r.StatusCode == http.StatusOK && strings.Contains(last, text) {
			return
		}
	}
	t.Fatalf("%s does not come to say %q within two minutes: %s", url, text, last)
}

// page is a tab of a browser, and what it complained about.
type page struct {
	ctx context.Context

	mu         sync.Mutex
	complaints []string
}

// open starts a browser that takes any certificate, as that of the adapter is its own.
func open(t *testing.T) *page {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.Flag("ignore-certificate-errors", true), chromedp.NoSandbox, chromedp.DisableGPU)
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 5*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	p := &page{ctx: ctx}
	complain := func(format string, args ...any) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.complaints = append(p.complaints, fmt.Sprintf(format, args...))
	}
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *log.EventEntryAdded:
			complain("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL)
		case *runtime.EventConsoleAPICalled:
			complain("console: %v", e.Args)
		case *runtime.EventExceptionThrown:
			complain("exception: %s", e.ExceptionDetails.Text)
		}
	})
	p.do(t, log.Enable(), runtime.Enable())
	return p
}

func (p *page) do(t *testing.T, actions ...chromedp.Action) {
	t.Helper()
	if err := chromedp.Run(p.ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

func (p *page) text(t *testing.T, selector string) string {
	t.Helper()
	var text string
	p.do(t, chromedp.Text(selector, &text, chromedp.ByQuery))
	return text
}

func (p *page) number(t *testing.T, expression string) float64 {
	t.Helper()
	var n float64
	p.do(t, chromedp.Evaluate(expression, &n))
	return n
}

// screenshot keeps how the page looks in the directory for artifacts, which is not committed.
func (p *page) screenshot(t *testing.T, name string) {
	t.Helper()
	var image []byte
	p.do(t, chromedp.FullScreenshot(&image, 100))
	dir := filepath.Join("..", "..", "artifacts")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), image, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestStatusPage(t *testing.T) {
	first := ports(t, 7)
	adapter, control := fmt.Sprintf("https://127.0.0.1:%d", first), fmt.Sprintf("http://127.0.0.1:%d", first+1)
	engine := func(i int) string { return fmt.Sprintf("http://127.0.0.1:%d/metrics", first+2+i) }
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("window: 15s\nwindows: [30s]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "engine-emulator", "standalone", "--replicas=3", fmt.Sprintf("--control-address=127.0.0.1:%d", first+1), fmt.Sprintf("--base-port=%d", first+2),
		fmt.Sprintf("--dcgm-address=127.0.0.1:%d", first+6), "--max-num-seqs=16", "--num-gpu-blocks=1000", "--max-model-len=8192")
	run(t, "adapter", "--standalone", "--config="+config, fmt.Sprintf("--secure-port=%d", first), "--scrape-interval=1s", "--collect-interval=1s",
		"--target=chat/llama-0{app=llama}="+engine(0), "--target=chat/llama-1{app=llama}="+engine(1), "--target=batch/qwen-0="+engine(2),
		"--target=batch/qwen-1="+engine(3)+"?token=s3cret") // where nobody listens

	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: time.Minute}
	await(t, client, control+"/state", "")
	r, err := http.NewRequest(http.MethodPut, control+"/load", strings.NewReader("poisson:rate=40"))
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := client.Do(r); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("giving the engines load: %v, %+v", err, answer)
	}
	api := adapter + "/apis/custom.metrics.k8s.io/v1beta2/namespaces/"
	await(t, client, api+"chat/pods/*/vllm_queue_depth", `"items":[{`)
	await(t, client, api+"chat/pods/*/vllm_kv_cache_usage", `"items":[{`)
	await(t, client, api+"chat/pods/*/vllm_ttft_seconds?metricLabelSelector=window%3D30s%2Cquantile%3D0.95", `"items":[{`)

	p := open(t)
	p.do(t, chromedp.EmulateViewport(1280, 900), chromedp.Navigate(adapter+"/debug/signals"), chromedp.WaitVisible("#pods tbody tr", chromedp.ByQuery))
	for selector, wants := range map[string][]string{
		"h1":       {"Signals"},
		"#source":  {"scraping the engines", "up", "took", "series", "config.yaml"},
		"#targets": {"3 up, 1 down", "chat/llama-0", "connection refused"},
		"#queries": {"3 collected", "vllm_queue_depth", "vllm_ttft_seconds{quantile=0.95,window=30s}", "somebody who asked"},
		"#pods":    {"chat/llama-0", "vllm_kv_cache_usage", "value", "cannot be scraped", "unknown"},
	} {
		text := p.text(t, selector)
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not say %q: %s", selector, want, text)
			}
		}
		if strings.Contains(text, "s3cret") {
			t.Errorf("%s has a secret in it: %s", selector, text)
		}
	}
	background := func() string {
		var color string
		p.do(t, chromedp.Evaluate(`getComputedStyle(document.body).backgroundColor`, &color))
		return color
	}
	const overflow = `document.documentElement.scrollWidth - document.documentElement.clientWidth`
	look := func(name, scheme string, width int64) string {
		t.Helper()
		p.do(t, chromedp.EmulateViewport(width, 900),
			emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
		if n := p.number(t, overflow); n > 0 {
			t.Errorf("%s: the page is %g pixels too wide", name, n)
		}
		p.screenshot(t, "status-"+name+".png")
		return background()
	}
	light, dark := look("light", "light", 1280), look("dark", "dark", 1280)
	if light == dark {
		t.Errorf("it is %s in light and in dark", light)
	}
	look("phone", "light", 390)

	// The form works without scripts.
	p.do(t, chromedp.EmulateViewport(1280, 900), chromedp.SendKeys("input[name=namespace]", "batch", chromedp.ByQuery), chromedp.Submit("form", chromedp.ByQuery),
		chromedp.WaitVisible(`a[href="?"]`, chromedp.ByQuery))
	if text := p.text(t, "main"); strings.Contains(text, "llama") || !strings.Contains(text, "batch/qwen-0") {
		t.Errorf("namespace batch shows: %s", text)
	}
	p.do(t, chromedp.Navigate(adapter+"/debug/signals?state=unknown"), chromedp.WaitVisible("#pods", chromedp.ByQuery))
	if text := p.text(t, "#pods"); strings.Contains(text, "llama-0") || !strings.Contains(text, "batch/qwen-1") {
		t.Errorf("unknown are: %s", text)
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.complaints) > 0 {
		t.Errorf("the browser complains: %s", strings.Join(p.complaints, "\n"))
	}
}
