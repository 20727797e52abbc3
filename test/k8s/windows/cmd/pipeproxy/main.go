//go:build windows

// Command pipeproxy lets programs outside Wine talk to a named pipe in it: it accepts TCP connections on loopback, joins each
// to the pipe, and prints where it listens. It does not look at the data.
//
//	pipeproxy \\.\pipe\NAME
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/Microsoft/go-winio"
)

func main() {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, "pipeproxy:", err)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, "pipeproxy:", err)
			os.Exit(1)
		}
		go join(c, os.Args[1]) // ends with the connection
	}
}

// join copies both ways until one side ends.
func join(c net.Conn, pipe string) {
	defer c.Close()
	wait := time.Second
	p, err := winio.DialPipe(pipe, &wait)
	if err != nil {
		fmt.Fprintln(os.Stderr, "pipeproxy:", err)
		return
	}
	defer p.Close()
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{c, p}, {p, c}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // how it ends does not matter
			done <- struct{}{}
		}()
	}
	<-done
}
