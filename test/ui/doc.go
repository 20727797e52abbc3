// Package ui tests the page of `nkp ui` in a headless browser, on a real switch with a real agent, by what a person does: find the
// Service that does not answer, read why, trace a packet to the flow that decides (`make test-ui`). Its screenshots are the pictures
// of docs/ui.md.
//
// It is a Go module of its own: nothing else needs a client of the browser.
package ui
