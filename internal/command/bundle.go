package command

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/dataplane"
)

func newBundle(on *target) *cobra.Command {
	file := ""
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Write one archive for a bug report, without secrets",
		Long: `bundle asks the running agent for what a bug report needs and writes it to one .tar.gz: versions, the
configuration in force, the answers to nkp status, services, pods, diff and flows, conntrack counts,
what nkp reads of Open vSwitch's database, and the agent's newest log lines. contents.txt says what
is in it, what was cut (2 MiB a file, 16 MiB in all) and what could not be read. Addresses and names of
Services, pods and nodes are in it; credentials are not: nkp does not ask for them, and what looks like
one is replaced by [redacted]. The file is for its owner only, and an existing file is never overwritten.
Exit status: 0 written, 1 not written.`,
		Example: "  nkp bundle\n  nkp bundle -f report.tar.gz\n" +
			"  nkp bundle -f - | ssh admin@desk 'cat > report.tar.gz'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			peers, err := on.peers(cmd)
			switch {
			case err != nil:
				return err
			case len(peers) != 1:
				return usageError("a bundle is about one node, and there are %d: name one with --node",
					len(peers))
			}
			defer peers[0].Close()
			slow := time.AfterFunc(time.Second, func() {
				if _, _, terminal := terminalSize(cmd.ErrOrStderr()); terminal {
					fmt.Fprintf(cmd.ErrOrStderr(),
						"nkp: waiting for the agent's answers, %v at most\n", on.timeout())
				}
			})
			b := collect(cmd.Context(), peers[0], on.timeout())
			slow.Stop()
			return b.write(file, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}

	if on.nodes != nil {
		on.nodes.adapt(cmd, "the node that the bundle is about",
			"Write one archive about a node for a bug report, without secrets",
			`bundle writes what nkp bundle does on a node to one .tar.gz on this machine; nkp bundle --help says what is
in it. Exit status: 0 written, 1 not written.`,
			"  kubectl nkp bundle --node node-1\n  kubectl nkp bundle --node node-1 -f report.tar.gz")
	} else {
		on.use(cmd.Flags(), "config", "socket")
	}
	cmd.Flags().StringVarP(&file, "file", "f", "",
		"file to write, which must not exist; -: standard output (default: nkp-bundle-NODE-TIME.tar.gz)")
	return cmd
}

// Bounds of what a bundle holds, in bytes before compression. bundleFlows bounds the flows, so that the
// switch is not asked for more than fits.
const (
	maxPart     = 2 << 20
	maxBundle   = 16 << 20
	bundleFlows = 5000
)

// bundle is what a bundle is made of.
type bundle struct {
	node  string // "": not known
	parts []*part
}

// part is a file of a bundle.
type part struct {
	name string
	text string
	err  error // why there is no text
}

// set sets the text of a part: a string, or a value as JSON.
func (p *part) set(value any, err error) {
	var text strings.Builder
	s, isText := value.(string)
	if err == nil && !isText {
		err = (&output{format: "json"}).write(&text, value)
		s = text.String()
	}
	p.text, p.err = s, err
}

// collect asks an agent for all parts at once, which may take as long as timeout.
func collect(ctx context.Context, of peer, timeout time.Duration) *bundle {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	b := &bundle{node: of.Node}
	var wait sync.WaitGroup
	add := func(name string, read func() (any, error)) {
		p := &part{name: name}
		b.parts = append(b.parts, p)
		wait.Go(func() { p.set(read()) })
	}
	add("status.json", func() (any, error) {
		s, err := of.Status(ctx)
		if err == nil {
			b.node = s.Node
		}
		return s, err
	})
	add("services.json", func() (any, error) { return of.Services(ctx, api.ServiceFilter{}) })
	add("pods.json", func() (any, error) { return of.Pods(ctx) })
	add("diff.txt", func() (any, error) { return of.Diff(ctx) })
	add("flows.txt", func() (any, error) {
		list, err := of.Flows(ctx, "", "", bundleFlows)
		if err != nil {
			return nil, err
		}
		var text strings.Builder
		err = writeFlows(&text, list)
		return text.String(), err
	})

	r, err := of.Report(ctx)
	if err != nil {
		r = &api.Report{}
	}
	add("version.txt", func() (any, error) {
		return fmt.Sprintf("nkp %s %s\n%s", r.Version, r.Platform, r.Uname), err
	})
	add("configuration.json", func() (any, error) { return r.Configuration, err })
	add("conntrack.json", func() (any, error) { return r.Conntrack, err })
	add("database.txt", func() (any, error) { return r.Database, err })
	add("log.txt", func() (any, error) { return r.Log, err })
	wait.Wait()
	return b
}

// write writes the archive to a file, "" for one that is named after node and time, and prints its name and
// size.
func (b *bundle) write(file string, stdout, stderr io.Writer) error {
	now := time.Now().UTC().Truncate(time.Second)
	base := strings.ReplaceAll("nkp-bundle-"+cmp.Or(b.node, "unknown")+"-"+now.Format("20060102T150405Z"),
		"/", "_")

	archive, unread, err := b.archive(base, now)
	if err != nil {
		return err
	}
	if unread > 0 {
		fmt.Fprintf(stderr, "nkp: %s could not be read: contents.txt in the archive says why\n",
			dataplane.Count(unread, "part"))
	}

	if file == "-" {
		_, err := stdout.Write(archive)
		return err
	}

	file = cmp.Or(file, base+".tar.gz")
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists already: remove it, or name another file with -f", file)
	} else if err != nil {
		return err
	}

	_, err = f.Write(archive)
	if err := errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(file) // half of a bundle
		return err
	}

	_, err = fmt.Fprintf(stdout, "%s: %d kB\n", file, (len(archive)+999)/1000)
	return err
}

// archive returns the parts as files of a directory, after contents.txt, and the number of parts that are
// missing.
func (b *bundle) archive(dir string, now time.Time) (archive []byte, unread int, err error) {
	contents, left := &part{name: "contents.txt", text: "written by nkp " + agent.Version + "\n"}, maxBundle
	for _, p := range b.parts {
		contents.text += p.name + ": "
		if p.err != nil {
			unread++
			contents.text += "not read: " + oneLine(p.err.Error()) + "\n"
			continue
		}
		contents.text += fmt.Sprintf("%d bytes", len(p.text))
		if most := min(maxPart, left); len(p.text) > most {
			p.text = p.text[:strings.LastIndexByte(p.text[:most], '\n')+1]
			contents.text += fmt.Sprintf(", cut after %d", len(p.text))
		}
		contents.text += "\n"
		left -= len(p.text)
	}

	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	files := tar.NewWriter(zip)
	for _, p := range append([]*part{contents}, b.parts...) {
		if p.err != nil {
			continue
		}
		text := redact(p.text)
		err = errors.Join(err, files.WriteHeader(&tar.Header{
			Name: dir + "/" + p.name, Mode: 0o600, Size: int64(len(text)), ModTime: now,
		}))
		_, failed := io.WriteString(files, text)
		err = errors.Join(err, failed)
	}
	err = errors.Join(err, files.Close(), zip.Close())
	return out.Bytes(), unread, err
}
