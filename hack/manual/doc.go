// Command manual writes what a package installs beside the binary: man pages and shell completions, from the commands' own
// texts. deploy/package/dist runs it. It is not part of nkp, so that the binary needs no Markdown renderer.
package main
