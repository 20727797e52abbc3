package mode

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/internal/bridge"
)

// Each reason to choose another data plane is a warning as long as it holds, for the node's own traffic too, and is announced
// once. A look learns what the last one said.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var announced []string
		w := Watch{Announce: func(event, text string) { announced = append(announced, event+": "+text) }}
		ctx, stop := context.WithCancel(t.Context())
		go w.Run(ctx, "Never", 10*time.Second, func(context.Context, string) string { return "" })
		synctest.Wait()

		var answer atomic.Value
		answer.Store("")
		var last atomic.Value
		go w.Run(ctx, "Drops", time.Minute, func(_ context.Context, before string) string {
			last.Store(before)
			return answer.Load().(string)
		})
		before := ""
		for _, step := range []struct {
			says string
			want []string
		}{{"", nil}, {"INPUT drops", []string{"INPUT drops"}}, {"INPUT drops", []string{"INPUT drops"}}, {"", nil}, {"INPUT drops", []string{"INPUT drops"}}} {
			answer.Store(step.says)
			time.Sleep(time.Minute + time.Second) // past the look
			synctest.Wait()
			if got := w.Reasons(); !slices.Equal(got, step.want) {
				t.Errorf("%q: %q", step.says, got)
			}
			if got := last.Load(); got != before {
				t.Errorf("%q: the look was told %q, want %q", step.says, got, before)
			}
			before = step.says
		}
		stop()
		synctest.Wait()
		if !slices.Equal(announced, []string{"Drops: INPUT drops", "Drops: INPUT drops"}) || len(w.Reasons()) > 0 {
			t.Errorf("announced %q; in the end %q", announced, w.Reasons())
		}
	})
}

// A bridge is looked for where nkp could serve in it: not on Windows.
func TestOtherThanLooksForBridge(t *testing.T) {
	for m, want := range map[Mode]bool{NFTables: true, IPTables: true, Windows: false} {
		socket := filepath.Join(t.TempDir(), "db.sock")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		var asked atomic.Bool
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				asked.Store(true)
				conn.Close()
			}
		}()

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		n := Node{Settings: &bridge.Settings{OVSDB: "unix:" + socket, Bridge: "br-int"}}
		if text := n.OtherThan(ctx, m, nil); text != "" || asked.Load() != want {
			t.Errorf("%s: %q, the database was asked: %t, want %t", m, text, asked.Load(), want)
		}
		cancel()
		l.Close()
	}
}
