package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/coreos/go-systemd/v22/unit"
)

// service is the section [Service] of a unit: the values of each setting, in order.
type service map[string][]string

// known are the settings that confine applies (true), or that restrict nothing a node's proxy could notice (false): how
// the service is run, and what a process without the capabilities for it cannot do anyway.
var known = map[string]bool{
	"CapabilityBoundingSet": true, "NoNewPrivileges": true,
	"ProtectSystem": true, "ProtectHome": true, "PrivateTmp": true, "PrivateDevices": true, "ReadWritePaths": true,
	"ProtectKernelTunables": true, "ProtectControlGroups": true, "ProtectKernelModules": true,
	"SystemCallFilter": true, "SystemCallErrorNumber": true, "SystemCallArchitectures": true,
	"RestrictAddressFamilies": true, "RestrictNamespaces": true, "MemoryDenyWriteExecute": true, "LockPersonality": true,
	"RestrictRealtime": true, "UMask": true,

	"DevicePolicy": false, "ProtectKernelLogs": false, "ProtectClock": false, "ProtectHostname": false,
	"RestrictSUIDSGID": false, "RemoveIPC": false, "KeyringMode": false,
	"Type": false, "Environment": false, "EnvironmentFile": false, "ExecStart": false, "ExecStartPre": false, "Restart": false,
	"RestartSec": false, "KillMode": false, "TimeoutStartSec": false, "TimeoutStopSec": false, "WatchdogSec": false,
	"OOMScoreAdjust": false, "RuntimeDirectory": false, "RuntimeDirectoryPreserve": false,
}

func readUnit(file string) (service, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	options, err := unit.DeserializeOptions(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	s := service{}
	for _, o := range options {
		if o.Section != "Service" {
			continue
		}
		if _, ok := known[o.Name]; !ok {
			return nil, fmt.Errorf("%s: %s= is not known here: apply it, or say in unit.go why it does not matter", file, o.Name)
		}
		s[o.Name] = append(s[o.Name], o.Value)
	}
	return s, nil
}

// words returns all words of a setting, in order.
func (s service) words(name string) (words []string) {
	for _, v := range s[name] {
		words = append(words, strings.Fields(v)...)
	}
	return words
}

// is reports whether a setting has this value.
func (s service) is(name, value string) bool { return slices.Contains(s[name], value) }

// on reports whether a setting is yes.
func (s service) on(name string) bool { return s.is(name, "yes") }
