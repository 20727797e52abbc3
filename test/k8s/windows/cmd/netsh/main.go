//go:build windows

// Command netsh stands for Windows' own in Wine, which has no firewall and no dynamic ports. It writes its arguments to C:\netsh.log, a line
// for each call, and knows of rules only whether one was added: setting one that was not fails, and so does everything while C:\netsh-fails
// exists. What "interface ipv4 show dynamicportrange protocol=tcp" prints is in C:\netsh-dynamicportrange-tcp; such calls are not written down.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

const (
	log   = `C:\netsh.log`
	fails = `C:\netsh-fails`
	rule  = `C:\netsh-rule`
)

func main() {
	if len(os.Args) == 6 && os.Args[1] == "interface" {
		text, err := os.ReadFile(`C:\netsh-` + os.Args[4] + "-" + strings.TrimPrefix(os.Args[5], "protocol="))
		if err != nil {
			fmt.Println("The following command was not found:", os.Args[1:])
			os.Exit(1)
		}
		fmt.Print(string(text))
		return
	}
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Fprintln(f, strings.Join(os.Args[1:], "|"))
	f.Close()
	if _, err := os.Stat(fails); err == nil {
		fmt.Println("The Windows Firewall service is not running.")
		os.Exit(1)
	}
	switch {
	case slices.Contains(os.Args, "add"):
		err = os.WriteFile(rule, nil, 0o644)
	case slices.Contains(os.Args, "delete"):
		err = os.Remove(rule)
	default:
		_, err = os.Stat(rule)
	}
	if err != nil {
		fmt.Println("No rules match the specified criteria.")
		os.Exit(1)
	}
}
