package engine

import (
	"math"
	"slices"
)

// Bucket edges, as each engine has them. Where an engine's are not named here, they are vLLM's,
// from whose metrics those of TensorRT-LLM, NIM and LMDeploy descend.
var (
	firstTokenEdges = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
		20, 40, 80, 160, 640, 2560}
	tokenTimeEdges = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
		20, 40, 80}
	requestTimeEdges = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960,
		1920, 7680}
	iterationEdges = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	paramsNEdges   = []float64{1, 2, 5, 10, 20}

	// Until the spring of 2025 vLLM's own ended sooner.
	oldFirstTokenEdges  = firstTokenEdges[:16]  // 10
	oldTokenTimeEdges   = tokenTimeEdges[:13]   // 2.5
	oldRequestTimeEdges = requestTimeEdges[:15] // 60

	sglangFirstTokenEdges = []float64{0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400}
	sglangRequestEdges    = append(slices.Clone(sglangFirstTokenEdges), 600, 1200, 1800, 2400)
	sglangTokenTimeEdges  = []float64{0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06,
		0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8}
	sglangQueueEdges = []float64{0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50,
		60, 70, 80, 90, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000}
	sglangTokenEdges = []float64{100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000,
		10000, 12500, 15000, 17500, 20000, 22500, 25000, 27500, 30000, 35000, 40000, 60000, 80000, 100000, 200000,
		300000, 400000, 600000, 800000, 1000000, 1100000}

	tgiTimeEdges = geometricEdges(0.0001, 1.5, 35)

	trtllmPrefillEdges = []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 640, 2560}

	tritonFirstResponseEdges = []float64{0.1, 0.5, 2, 5} // shown in milliseconds

	lmdeployTokenTimeEdges = append([]float64{0.005}, tokenTimeEdges...)

	dynamoFirstTokenEdges = logEdges(0.001, 480, 18)
	dynamoTokenTimeEdges  = logEdges(0.001, 2, 13)
	dynamoRequestEdges    = logEdges(1, 512, 10)
	dynamoInputEdges      = logEdges(50, 128000, 12)
	dynamoOutputEdges     = logEdges(50, 32000, 10)

	pickerRequestEdges = []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15,
		20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	pickerFirstTokenEdges = pickerRequestEdges[:24] // 120
	pickerTPOTEdges       = []float64{0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3,
		0.4, 0.5, 0.6, 0.8, 1, 2}
	pickerTokenTimeEdges  = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2}
	pickerNormalizedEdges = []float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10}
	// 32778 is the picker's own.
	pickerInputEdges = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32778, 65536, 131072,
		262144, 524288, 1048576}
	pickerOutputEdges = pickerInputEdges[:12] // 8192
)

// timeEdges are all edges by which some engine counts a time. An observation is kept in the bucket
// that lies between two of them, so that every engine's own buckets can be told from it exactly.
var timeEdges = union(firstTokenEdges, tokenTimeEdges, requestTimeEdges, sglangFirstTokenEdges, sglangRequestEdges,
	sglangTokenTimeEdges, sglangQueueEdges, tgiTimeEdges, trtllmPrefillEdges, tritonFirstResponseEdges,
	lmdeployTokenTimeEdges, dynamoFirstTokenEdges, dynamoTokenTimeEdges, dynamoRequestEdges, pickerRequestEdges,
	pickerTPOTEdges, pickerTokenTimeEdges, pickerNormalizedEdges)

// allTokenEdges are all edges by which some engine counts tokens of a request.
func allTokenEdges(c Config) []float64 {
	return union(tokenEdges(c.MaxModelLen), tgiTokenEdges(c), sglangTokenEdges, dynamoInputEdges, dynamoOutputEdges,
		pickerInputEdges)
}

// tokenEdges are 1, 2, 5, 10, … up to and including the longest request.
func tokenEdges(maxModelLen int) []float64 {
	var edges []float64
	for decade := 1; ; decade *= 10 {
		for _, m := range []int{1, 2, 5} {
			if m*decade > maxModelLen {
				return edges
			}
			edges = append(edges, float64(m*decade))
		}
	}
}

// tgiTokenEdges are a hundred equal steps up to the longest request. (TGI's end at the longest
// input for inputs; the model has one limit for both.)
func tgiTokenEdges(c Config) []float64 {
	edges := make([]float64, 100)
	for i := range edges {
		edges[i] = float64(c.MaxModelLen) / 100 * float64(i+1)
	}
	return edges
}

func geometricEdges(start, factor float64, n int) []float64 {
	edges := make([]float64, n)
	for i := range edges {
		start *= factor
		edges[i] = start
	}
	return edges
}

// logEdges are Dynamo's: 0, then equal steps on a logarithmic scale, rounded to two digits. The
// least of the range is not among them, as 0 has taken its place.
func logEdges(least, most float64, n int) []float64 {
	edges := []float64{0}
	for i := 1; i < n; i++ {
		v := math.Exp(math.Log(least) + (math.Log(most)-math.Log(least))*float64(i)/float64(n-1))
		scale := math.Pow(10, 1-math.Floor(math.Log10(v)))
		edges = append(edges, math.Round(v*scale)/scale)
	}
	return slices.Compact(edges)
}

func union(sets ...[]float64) []float64 {
	all := slices.Concat(sets...)
	slices.Sort(all)
	return slices.Compact(all)
}
