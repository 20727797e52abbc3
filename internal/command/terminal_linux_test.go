package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openTerminal returns both ends of a pseudo-terminal of that size.
func openTerminal(t *testing.T, columns, rows uint16) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	must(t, err)
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows})
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	must(t, err)
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

// On a terminal --watch clears the screen once, and then each refresh replaces the one before, within the terminal's size.
func TestWatchOnTerminal(t *testing.T) {
	master, slave := openTerminal(t, 30, 4)
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	v := watch{interval: time.Millisecond}
	err := v.follow(ctx, slave, &output{format: "text"}, func(w io.Writer, width int) error {
		if n++; n == 3 {
			cancel()
			return ctx.Err()
		}
		_, err := fmt.Fprintf(w, "%d columns\n%s\n3\n4\n5\n", width, strings.Repeat("x", 40))
		return err
	})
	must(t, err)
	screen := cursorHome + "30 columns" + clearToEOL + "\r\n" + strings.Repeat("x", 30) + clearToEOL + "\r\n... 3 more lines" + clearToEOL + "\r\n" + clearBelow
	want := clearScreen + screen + screen
	got := make([]byte, len(want))
	if _, err := io.ReadFull(master, got); err != nil || string(got) != want {
		t.Errorf("%v, %q\nwant %q", err, got, want)
	}
	must(t, writeDiff(slave, &output{format: "text"}, ""))
	const equal = "no difference\r\n"
	if _, err := io.ReadFull(master, got[:len(equal)]); err != nil || string(got[:len(equal)]) != equal {
		t.Errorf("%v, %q", err, got)
	}
}
