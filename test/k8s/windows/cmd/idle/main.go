//go:build windows

// Command idle is a Windows service that does nothing until it is stopped: it stands for kube-proxy. As a program to install in place of
// nkp it accepts all flags, and fails shortly after it has started. When it is checked, it writes to C:\idle.log where it runs, and
// overwrites the file that C:\idle-source names, as a user can who may write where the installed program comes from.
package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/windows/svc"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == "windows-service" {
		if err := check(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(`{"version":"that fails"}`)
		return
	}
	if err := svc.Run("idle", idle{fails: len(os.Args) > 1}); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func check() error {
	self, err := os.Executable()
	if err == nil {
		err = os.WriteFile(`C:\idle.log`, []byte(self), 0o644)
	}
	source, missing := os.ReadFile(`C:\idle-source`)
	if err != nil || missing != nil {
		return err
	}
	return os.WriteFile(string(source), []byte("another program"), 0o755)
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
