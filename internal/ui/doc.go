// Package ui serves the page of `nkp ui`: Services, one Service as a picture, a trace on the pipeline's
// picture, and the node.
//
// The page reads what a [Source] returns, the same values as `nkp status -o json`, `nkp services -o json` and
// `nkp trace --live -o json`, and changes nothing. All that it needs is embedded; it loads nothing from
// another host. Every request must carry the random token of the address, and a Host header of this machine's
// loopback. The files in page/ are plain HTML, CSS and JavaScript: they run as they are, without a build
// step, and put text into the document only as text.
//
// It does not know the agent: package command connects the two. Start reading at [Handler].
package ui
