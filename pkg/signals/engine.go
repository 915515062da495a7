package signals

// Engine is what the catalogue knows of one exporter of series.
type Engine struct {
	// Name is the prefix of the engine's signals: vllm.
	Name string
}
