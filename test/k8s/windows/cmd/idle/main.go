//go:build windows

// Command idle is a Windows service that does nothing until it is stopped: it stands for kube-proxy. As a program to install in place of
// nkp it accepts all flags, and fails shortly after it has started.
package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/windows/svc"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == "windows-service" {
		fmt.Println(`{"version":"that fails"}`)
		return
	}
	if err := svc.Run("idle", idle{fails: len(os.Args) > 1}); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

type idle struct{ fails bool }

func (i idle) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (bool, uint32) {
	status <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop}
	if i.fails {
		time.Sleep(time.Second)
		return true, 1
	}
	for r := range requests {
		switch r.Cmd {
		case svc.Stop:
			return false, 0
		case svc.Interrogate:
			status <- r.CurrentStatus
		}
	}
	return false, 0
}
