package windows

import (
	"context"
	"encoding/binary"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

var (
	iphlpapi        = windows.NewLazySystemDLL("iphlpapi.dll")
	procGetTCPTable = iphlpapi.NewProc("GetTcpTable")
	procGetUDPTable = iphlpapi.NewProc("GetUdpTable")
)

// freePortBlocks counts the free blocks of dynamic ports (see PortBlocks) of this host. It runs netsh,
// because no documented function lists the dynamic range and the reservations.
func freePortBlocks(ctx context.Context) (b PortBlocks, err error) {
	// The offset of dwLocalPort in MIB_TCPROW (5 DWORDs) and MIB_UDPROW (2 DWORDs).
	if b.TCP, err = freeBlocksOf(ctx, "tcp", procGetTCPTable, 20, 8); err != nil {
		return b, err
	}
	b.UDP, err = freeBlocksOf(ctx, "udp", procGetUDPTable, 8, 4)
	return b, err
}

func freeBlocksOf(ctx context.Context, protocol string, table *windows.LazyProc, row, port int) (int, error) {
	text, err := netsh(ctx, "dynamicportrange", protocol)
	if err != nil {
		return 0, err
	}
	dynamic, err := parseDynamicRange(text)
	if err != nil {
		return 0, err
	}
	if text, err = netsh(ctx, "excludedportrange", protocol); err != nil {
		return 0, err
	}
	used, err := localPorts(table, row, port)
	if err != nil {
		return 0, err
	}
	return dynamic.freeBlocks(append(used, parseExclusions(text)...)), nil
}

// netsh returns what "netsh interface ipv4 show" prints of a protocol's ports. The context bounds it.
func netsh(ctx context.Context, show, protocol string) (string, error) {
	system, err := windows.GetSystemDirectory()
	if err != nil {
		return "", err
	}
	program := filepath.Join(system, "netsh.exe")
	c := exec.CommandContext(ctx, program, "interface", "ipv4", "show", show, "protocol="+protocol)
	c.WaitDelay = 5 * time.Second // a child of it may hold the output open
	out, err := c.CombinedOutput()
	if err != nil {
		words := strings.Join(strings.Fields(string(out)), " ")
		return "", fmt.Errorf("netsh interface ipv4 show %s: %w: %s", show, err, words)
	}
	return string(out), nil
}

// localPorts returns the local ports in a table of connections and sockets: a DWORD with the number of rows,
// and the rows.
func localPorts(table *windows.LazyProc, row, port int) (ports []portRange, err error) {
	size := uint32(64 << 10)
	for range 5 { // the table may grow between two calls
		buf := make([]byte, size+16<<10)
		size = uint32(len(buf))
		code, _, _ := table.Call(uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch syscall.Errno(code) {
		case windows.ERROR_INSUFFICIENT_BUFFER:
			continue
		case windows.ERROR_NO_DATA:
			return nil, nil
		case windows.ERROR_SUCCESS:
		default:
			return nil, fmt.Errorf("%s failed: %w", table.Name, syscall.Errno(code))
		}
		n := int(binary.LittleEndian.Uint32(buf))
		for i := range min(n, (len(buf)-4)/row) {
			at := int(binary.BigEndian.Uint16(buf[4+i*row+port:])) // in network byte order
			ports = append(ports, portRange{at, at})
		}
		return ports, nil
	}
	return nil, fmt.Errorf("%s: the table grows too fast", table.Name)
}
