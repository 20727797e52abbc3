// Command nkp serves Kubernetes Services inside Open vSwitch.
package main

import (
	"os"

	"github.com/nkp-proxy/nkp/internal/command"
)

func main() { os.Exit(command.Main(os.Args[0], os.Args[1:], os.Stdout, os.Stderr)) }
