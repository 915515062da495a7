package statetable

import (
	"flag"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
)

var rewrite = flag.Bool("rewrite", false, "write what is seen into docs/states.md instead of comparing it")

func TestMain(m *testing.M) {
	flag.Parse()
	// What the HPA controller cannot compute it reports here, on every sync. One of the handlers
	// sleeps by a clock that began outside of the bubbles, which is decades ahead of theirs.
	runtime.ErrorHandlers = nil
	klog.SetLogger(klog.Logger{}) // which drops everything
	restMapper()                  // outside of the bubbles
	os.Exit(m.Run())
}
