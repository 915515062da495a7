// Package browser looks at the adapter's status page with a real Chromium, without a window.
//
// It is a module of its own, which keeps the browser's protocol out of the adapter's go.mod.
package browser
