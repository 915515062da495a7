package signals

import (
	"bytes"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/inference-metrics/adapter/internal/engine"
)

// The bounds by which objectives are warned of are those that the engine ships.
func TestEdges(t *testing.T) {
	core, err := engine.New(engine.DefaultConfig(), time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	text := engine.Append(nil, engine.Exposition{ModelName: "m"}, []*engine.Engine{core})
	for c, m := range vllm.series {
		if len(m.edges) == 0 {
			continue
		}
		var shipped []float64
		for line := range bytes.Lines(text) {
			rest, ok := bytes.CutPrefix(line, []byte(m.names()[0]+"{"))
			if !ok {
				continue
			}
			_, rest, _ = bytes.Cut(rest, []byte(`le="`))
			le, _, _ := bytes.Cut(rest, []byte(`"`))
			if v, err := strconv.ParseFloat(string(le), 64); err == nil && string(le) != "+Inf" {
				shipped = append(shipped, v)
			}
		}
		if !slices.Equal(m.edges, shipped) {
			t.Errorf("%s: edges %v, and the engine ships %v", c, m.edges, shipped)
		}
	}
}
