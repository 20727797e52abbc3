package selftest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/windows"
)

// ThisHost returns this machine.
func ThisHost() *Host {
	v := windows.RtlGetVersion()
	return &Host{Windows: fmt.Sprintf("%d.%d.%d", v.MajorVersion, v.MinorVersion, v.BuildNumber),
		Processes: processes, Addresses: adapterPrefixes, Listens: listens}
}

// processes returns the names of the running programs but this one.
func processes() (names []string, err error) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return nil, err
	}
	defer windows.CloseHandle(snapshot)
	e := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(snapshot, &e); err == nil; err = windows.Process32Next(snapshot, &e) {
		if e.ProcessID != windows.GetCurrentProcessId() {
			names = append(names, windows.UTF16ToString(e.ExeFile[:]))
		}
	}
	if !errors.Is(err, windows.ERROR_NO_MORE_FILES) {
		return nil, err
	}
	return names, nil
}

// adapterPrefixes returns the prefixes of this machine's network adapters.
func adapterPrefixes() (list []netip.Prefix, err error) {
	addrs, err := net.InterfaceAddrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			list = append(list, p)
		}
	}
	return list, err
}

// listens returns an error if a process listens on a TCP port.
func listens(port int) error {
	l, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port))
	if err != nil {
		return err
	}
	return l.Close()
}
