package agent

import (
	"context"
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
)

// The agent's pipe is for SYSTEM and Administrators only, there is one agent for a pipe, and it goes with the agent.
func TestPipe(t *testing.T) {
	const path = `\\.\pipe\nkp-agent-test`
	l, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 2)
	go func() {
		for { // ends when l is closed
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, err = io.WriteString(c, "hello")
			c.Close()
			accepted <- err
		}
	}()

	sd, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		t.Fatal(err)
	}
	// Windows says FA (all of a file) where GA (all) was asked for.
	if got := strings.ReplaceAll(sd.String(), ";FA;", ";GA;"); got != onlyAdministrators {
		t.Errorf("security descriptor %s, want %s", got, onlyAdministrators)
	}

	c, err := dial(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(c)
	if err := <-accepted; err != nil {
		t.Error(err)
	}
	if string(text) != "hello" || err != nil {
		t.Errorf("read %q, %v", text, err)
	}
	c.Close()
	if _, err := listen(path); err == nil || !strings.Contains(err.Error(), "another nkp is running") {
		t.Errorf("a second agent: %v", err)
	}
	l.Close()
	if NewCaller(path).Running() {
		t.Error("the pipe of an agent that has ended still answers")
	}
}

// A pipe's name is checked before the agent starts.
func TestPipeName(t *testing.T) {
	for path, good := range map[string]bool{`\\.\pipe\nkp`: true, `\\.\PIPE\x\y`: true, `\\.\pipe\`: false, `C:\nkp.sock`: false, "/run/nkp/nkp.sock": false} {
		if err := CheckSocket(path); (err == nil) != good {
			t.Errorf("%s: %v", path, err)
		}
	}
}
