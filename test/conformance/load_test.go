package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A tally counts connections and requests, and what fails: refused and unanswered connections, and ones that break.
func TestLoad(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/hostname" {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, "me")
	})}
	go server.Serve(listener) // until Close
	defer server.Close()
	lines := make(chan string, 100)
	r, w := io.Pipe()
	go func() { // ends with w
		var text []byte
		for buffer := make([]byte, 4096); ; {
			n, err := r.Read(buffer)
			if err != nil {
				return
			}
			text = append(text[:0], buffer[:n]...)
			lines <- strings.TrimSpace(string(text))
		}
	}()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- load(ctx, w, []string{listener.Addr().String()}) }()
	until := func(what string, ok func(tally) bool) (sum tally) {
		t.Helper()
		for deadline := time.After(30 * time.Second); ; {
			select {
			case line := <-lines:
				if sum, err = readTallies(line, 1); err == nil && ok(sum) {
					return sum
				}
			case <-deadline:
				t.Fatalf("%s: %+v, %v", what, sum, err)
			}
		}
	}
	before := until("connections", func(t tally) bool { return t.Connections > 10 && t.Held > 1 })
	if before.Failed > 0 || before.Broken > 0 || before.First != "" {
		t.Errorf("%+v", before)
	}
	server.Close()
	after := until("failures", func(t tally) bool { return t.Failed > 0 && t.Broken > 0 })
	if d := after.since(before); after.First == "" || d.Connections < d.Failed || d.Broken != 1 {
		t.Errorf("%+v", after)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	w.Close()
}

// A rollout is not judged by fewer clients than there are, nor by one that has not begun.
func TestReadTallies(t *testing.T) {
	const one = `{"connections":5,"failed":1,"held":2,"broken":0,"first":"x"}`
	sum, err := readTallies(one+"\n"+one+"\n", 2)
	if want := (tally{10, 2, 4, 0, "x"}); err != nil || sum != want {
		t.Errorf("%+v, %v", sum, err)
	}
	for text, want := range map[string]string{
		one: "tallies of 1 clients, want 2", one + "\nbusybox: not found": "tally", one + "\n" + `{"connections":5}`: "no connection yet", "": "want 2",
	} {
		if sum, err := readTallies(text, 2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v", text, sum, err)
		}
	}
}
