package prometheus

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

// maxExpr bounds the text of the shared query: VictoriaMetrics refuses more than 16 KiB by default.
const maxExpr = 12 << 10

// A query asks for some names at once.
type query struct {
	names []string
	expr  string
	// shared says that it asks for all names that have no data, however few they are.
	shared bool
}

// String names the query in messages.
func (q query) String() string {
	if len(q.names) == 1 {
		return q.names[0]
	}
	return fmt.Sprintf("%s and %d more", q.names[0], len(q.names)-1)
}

// plan makes the queries of a fetch: one for each live name, one for all others together (more only
// where its text would grow past what servers accept).
func (s *Source) plan(names []string, lookback time.Duration) []query {
	seconds := max(1, int64((lookback+time.Second-1)/time.Second))
	window := "[" + strconv.FormatInt(seconds, 10) + "s]"

	var queries []query
	var rest []string
	size := 0
	probe := func() {
		if len(rest) == 0 {
			return
		}
		escaped := make([]string, len(rest))
		for i, name := range rest {
			escaped[i] = regexp.QuoteMeta(name)
		}
		m := labels.MustNewMatcher(labels.MatchRegexp, model.MetricNameLabel, strings.Join(escaped, "|"))
		queries = append(queries, query{names: rest, expr: s.selector(m) + window, shared: true})
		rest, size = nil, 0
	}
	names = slices.Clone(names)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if _, live := s.idle[name]; live {
			m := labels.MustNewMatcher(labels.MatchEqual, model.MetricNameLabel, name)
			queries = append(queries, query{names: []string{name}, expr: s.selector(m) + window})
			continue
		}
		if size += len(strconv.Quote(regexp.QuoteMeta(name))); size > maxExpr {
			probe()
		}
		rest = append(rest, name)
	}
	probe()
	return queries
}

func (s *Source) selector(name *labels.Matcher) string {
	all := []string{name.String()}
	for _, m := range s.matchers {
		all = append(all, m.String())
	}
	return "{" + strings.Join(all, ",") + "}"
}

// ask runs one query and calls series for each series of the answer.
func (s *Source) ask(ctx context.Context, q query, series func([]byte, []point) error) (ans answer, err error) {
	err = s.request(ctx, s.endpoint, url.Values{"query": {q.expr}}, false, s.maxBytes, func(body io.Reader, header http.Header) error {
		if header.Get(victoriaMetrics) != "" {
			series = withoutMarkers(series)
		}
		ans, err = decode(body, series)
		return err
	})
	if err == nil {
		err = ans.refused()
	}
	return ans, err
}

// refused says why the server did not answer a query, in its own words.
func (a answer) refused() error {
	if a.Status == "success" {
		return nil
	}
	return fmt.Errorf("the server answered %s: %s", clip(a.ErrorType), clip(a.Error))
}

// request asks an endpoint of the server, which may take GET only, and has read take the answer, of a size at most.
func (s *Source) request(ctx context.Context, endpoint *url.URL, form url.Values, onlyGET bool, maxBytes int64, read func(io.Reader, http.Header) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, errTimeout)
	defer cancel()

	s.mu.Lock()
	useGET := s.useGET || onlyGET
	s.mu.Unlock()

	resp, err := s.send(ctx, endpoint, form, useGET)
	if err == nil && !useGET && (resp.StatusCode == http.StatusMethodNotAllowed || resp.StatusCode == http.StatusNotImplemented) {
		// Some gateways only let reads pass as GET.
		drop(resp.Body)
		s.mu.Lock()
		s.useGET = true
		s.mu.Unlock()
		resp, err = s.send(ctx, endpoint, form, true)
	}
	if err != nil {
		return s.explain(ctx, err)
	}
	defer drop(resp.Body)
	s.readClock(resp)

	body := io.Reader(resp.Body)
	if resp.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			return s.explain(ctx, fmt.Errorf("reading the answer: %w", err))
		}
		defer unzipped.Close()
		body = unzipped
	}
	body = &limitedReader{r: body, left: maxBytes, limit: maxBytes}

	if resp.StatusCode != http.StatusOK {
		return refused(resp, body)
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "text/html" {
		return errors.New("the answer is a web page, not JSON: a login page or another server is at this address; check the URL, its path prefix and the credentials")
	}
	if err := read(body, resp.Header); err != nil {
		return s.explain(ctx, fmt.Errorf("reading the answer: %w", err))
	}
	return nil
}

// victoriaMetrics is a header that VictoriaMetrics' servers set on every answer.
const victoriaMetrics = "X-Server-Hostname"

// withoutMarkers leaves out what is NaN. VictoriaMetrics keeps no NaN but the marker that a series
// ended or could not be scraped, and has it among the samples, as any NaN. Passed on, it would say that
// the series goes on with a number that nobody knows. Prometheus keeps its markers to itself.
func withoutMarkers(series func([]byte, []point) error) func([]byte, []point) error {
	return func(metric []byte, points []point) error {
		return series(metric, slices.DeleteFunc(points, func(p point) bool { return math.IsNaN(p.v) }))
	}
}

func (s *Source) send(ctx context.Context, endpoint *url.URL, form url.Values, useGET bool) (*http.Response, error) {
	form = maps.Clone(form)
	form.Set("timeout", strconv.FormatFloat(s.timeout.Seconds(), 'f', -1, 64)+"s")
	method, target, body := http.MethodPost, *endpoint, io.Reader(strings.NewReader(form.Encode()))
	if useGET {
		method, body = http.MethodGet, nil
		params := target.Query()
		for k, v := range form {
			params[k] = v
		}
		target.RawQuery = params.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target.String(), body)
	if err != nil {
		return nil, err
	}
	if !useGET {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Cache-Control", "no-cache")
	req.Header.Set("Accept-Encoding", "gzip")
	connected := false
	resp, err := s.client.Do(req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected = true },
	})))
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the URL, which may hold a user name and the query
		}
		if !connected {
			err = fmt.Errorf("%w: %w", errUnreachable, err)
		}
	}
	return resp, err
}

// maxSkew is how far a server's clock may be off for us to believe its Date header; beyond it a
// proxy or a machine without a clock speaks.
const maxSkew = 24 * time.Hour

// readClock compares the server's clock with ours. The Date header counts whole seconds, so as long
// as our clock agrees with it, ours is the finer of the two.
func (s *Source) readClock(resp *http.Response) {
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return
	}
	// An answer out of a cache has the date at which it was made. Without its age the clock would seem
	// to be behind, and old samples fresh.
	if age, err := strconv.ParseUint(resp.Header.Get("Age"), 10, 31); err == nil {
		date = date.Add(time.Duration(age) * time.Second)
	}
	skew := time.Until(date.Add(time.Second / 2))
	switch {
	case skew.Abs() <= 1500*time.Millisecond, skew.Abs() > maxSkew:
		skew = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skew = skew
}

// now is the time on the server's clock.
func (s *Source) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.skew)
}

var (
	errUnreachable = errors.New("cannot be reached")
	errTimeout     = errors.New("timed out")
	errPartial     = errors.New("the answer is partial, as some of the server's storage did not answer: check its storage nodes and stores")
	// errTooMuch marks that a query asks for more than the server, or we, can take at once.
	errTooMuch = errors.New("too much at once")
)

// lacking says whether something is missing from an answer. VictoriaMetrics has a field for that;
// Thanos, and a Prometheus that reads from others, only warn: of a store that did not answer, or of a
// limit that cut the answer off. What the query language itself remarks on is marked as such, and no
// storage's fault.
func (a answer) lacking() error {
	for _, w := range a.Warnings {
		if !strings.HasPrefix(w, "PromQL ") {
			return fmt.Errorf("%w: the server warns: %s", errPartial, clip(w))
		}
	}
	if a.Partial {
		return errPartial
	}
	return nil
}

// explain says what to do about an error of the connection.
func (s *Source) explain(ctx context.Context, err error) error {
	var dns *net.DNSError
	var tooLarge *tooLargeError
	switch {
	case errors.As(err, &dns):
		return fmt.Errorf("%w: check the host in the URL", err)
	case errors.Is(err, errUnreachable):
		return fmt.Errorf("%w: check that the server runs, the URL, and network policies", err)
	case errors.Is(context.Cause(ctx), errTimeout):
		return fmt.Errorf("%w: no complete answer within %s: the server hangs or is overloaded, or the timeout is too short: %w", errTooMuch, s.timeout, err)
	case errors.Is(ctx.Err(), context.DeadlineExceeded): // the caller's
		return fmt.Errorf("%w: no complete answer in time: the server hangs or is overloaded: %w", errTooMuch, err)
	case errors.As(err, &tooLarge):
		return fmt.Errorf("%w: %w", errTooMuch, err)
	case ctx.Err() != nil:
		return err
	case errors.Is(err, errNotJSON), errors.Is(err, errSyntax):
		return fmt.Errorf("%w: check that the URL and its path prefix lead to a Prometheus API", err)
	}
	return err
}

// refused explains an answer that is not 200.
func refused(resp *http.Response, body io.Reader) error {
	hint, kind := "", error(nil)
	switch code := resp.StatusCode; {
	case code >= 300 && code < 400:
		to := "elsewhere"
		if u, err := resp.Location(); err == nil {
			to = u.Scheme + "://" + u.Host
		}
		return fmt.Errorf("the server redirects to %s (%s): set the URL to where the API is; a redirect to a login page means that credentials are missing", to, resp.Status)
	case code == http.StatusUnauthorized:
		hint = "check the credentials in the client config"
	case code == http.StatusForbidden:
		hint = "the credentials are known but may not query: grant them read access"
	case code == http.StatusNotFound:
		hint = "check the path prefix in the URL"
	case code == http.StatusUnprocessableEntity:
		kind = errTooMuch
		hint = "the query is beyond the server's limits: narrow it with matchers, or raise the server's limit (Prometheus: --query.max-samples)"
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable:
		hint = "the server is overloaded or limits this client"
	case code == http.StatusBadGateway, code == http.StatusGatewayTimeout:
		hint = "the gateway before the server cannot reach it"
	}
	text, _ := io.ReadAll(io.LimitReader(body, 16<<10))
	said := ""
	if page := bytes.HasPrefix(bytes.TrimSpace(text), []byte("<")); !page {
		if ans, err := decode(strings.NewReader(string(text)), nil); err == nil && ans.Error != "" {
			said = ans.Error
		} else if len(text) > 0 && text[0] != '{' {
			said = string(text)
		}
	}
	msg := "the server answered " + resp.Status
	if said != "" {
		msg += ": " + clip(said)
	}
	if hint != "" {
		msg += ": " + hint
	}
	if kind != nil {
		return fmt.Errorf("%w: %s", kind, msg)
	}
	return errors.New(msg)
}

// clip makes a server's text fit for one line of a message.
func clip(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if r := []rune(text); len(r) > 300 {
		return string(r[:300]) + "…"
	}
	return text
}

// drop reads what is left of a short body, so that the connection can be used again.
func drop(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 64<<10)
	_ = body.Close()
}

type tooLargeError struct{ limit int64 }

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("it is larger than %d MiB: narrow the queries with matchers, or raise the limit", e.limit>>20)
}

// limitedReader fails, unlike io.LimitReader, when there is more to read than its limit.
type limitedReader struct {
	r           io.Reader
	left, limit int64
}

func (l *limitedReader) Read(p []byte) (int, error) {
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return n, &tooLargeError{l.limit}
	}
	return n, err
}
