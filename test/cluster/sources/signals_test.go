package sources

import (
	"slices"
	"testing"

	"github.com/inference-metrics/adapter/pkg/signals"
)

// wanted are the series that the catalogue asks for.
func wanted() []string {
	names := slices.Concat(signals.Names(signals.Catalogue())...)
	slices.Sort(names)
	return slices.Compact(names)
}

func (p *play) testSignals(t *testing.T) {}
