package prometheus

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/prometheus/common/model"
)

const (
	// maxInstantBytes bounds the answer to a query of somebody's own: a value for each of a hundred thousand
	// objects.
	maxInstantBytes = 32 << 20
	// maxNames bounds how many names a server is asked for, and recently is how far back they may lie.
	maxNames = 10_000
	recently = time.Hour
)

// Query evaluates a query of somebody's own at the server's now. A scalar is a sample without labels. What lacks
// something, because a part of the server's storage did not answer, is an error: a sum would be too low.
func (s *Source) Query(ctx context.Context, query string) (model.Vector, error) {
	var data struct {
		ResultType string          `json:"resultType"`
		Result     json.RawMessage `json:"result"`
	}
	if err := s.get(ctx, s.endpoint, url.Values{"query": {query}}, false, &data); err != nil {
		return nil, fmt.Errorf("%s: %w", s, err)
	}
	var err error
	switch data.ResultType {
	case "vector":
		var v model.Vector
		if err = json.Unmarshal(data.Result, &v); err == nil {
			return v, nil
		}
	case "scalar":
		var v model.Scalar
		if err = json.Unmarshal(data.Result, &v); err == nil {
			return model.Vector{{Metric: model.Metric{}, Value: v.Value, Timestamp: v.Timestamp}}, nil
		}
	default:
		err = fmt.Errorf("it is a %.20q, not a vector", data.ResultType)
	}
	return nil, fmt.Errorf("%s: reading the answer: %w", s, err)
}

// LabelNames returns the names of labels of the series that a selector chooses, of the last hour or so.
func (s *Source) LabelNames(ctx context.Context, selector string) ([]string, error) {
	return s.names(ctx, "labels", selector)
}

// LabelValues returns the values that a label has in the series that a selector chooses, of the last hour or so.
func (s *Source) LabelValues(ctx context.Context, label, selector string) ([]string, error) {
	return s.names(ctx, "label/"+url.PathEscape(label)+"/values", selector)
}

// names asks for a list of names. One that is cut off is an error: what is missing would seem not to be there.
func (s *Source) names(ctx context.Context, path, selector string) ([]string, error) {
	now := s.now()
	form := url.Values{
		"match[]": {selector},
		"start":   {strconv.FormatInt(now.Add(-recently).Unix(), 10)},
		"end":     {strconv.FormatInt(now.Unix()+1, 10)},
		"limit":   {strconv.Itoa(maxNames + 1)},
	}
	var out []string
	if err := s.get(ctx, s.endpoint.JoinPath("../"+path), form, true, &out); err != nil {
		return nil, fmt.Errorf("%s: %w", s, err)
	}
	if len(out) > maxNames {
		return nil, fmt.Errorf("%s: %s chooses series of more than %d names: narrow it", s, selector, maxNames)
	}
	return out, nil
}

// get asks an endpoint and decodes the data of its answer.
func (s *Source) get(ctx context.Context, endpoint *url.URL, form url.Values, onlyGET bool, data any) error {
	var ans struct {
		answer
		IsPartial bool            `json:"isPartial"`
		Data      json.RawMessage `json:"data"`
	}
	err := s.request(ctx, endpoint, form, onlyGET, maxInstantBytes, func(body io.Reader, _ http.Header) error {
		if err := json.NewDecoder(body).Decode(&ans); err != nil {
			return fmt.Errorf("%w: %w", errNotJSON, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := ans.refused(); err != nil {
		return err
	}
	ans.Partial = ans.IsPartial
	if err := ans.lacking(); err != nil {
		return err
	}
	if err := json.Unmarshal(ans.Data, data); err != nil {
		return fmt.Errorf("reading the answer: %w: %w", errSyntax, err)
	}
	return nil
}
