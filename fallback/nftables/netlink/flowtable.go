//go:build linux

package netlink

import (
	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// Attributes of flowtables that golang.org/x/sys/unix lacks (nf_tables.h).
const (
	flowtableName         = 2 // NFTA_FLOWTABLE_NAME
	flowtableHook         = 3 // NFTA_FLOWTABLE_HOOK
	flowtableHandle       = 5 // NFTA_FLOWTABLE_HANDLE
	flowtableHookNum      = 1 // NFTA_FLOWTABLE_HOOK_NUM
	flowtableHookPriority = 2 // NFTA_FLOWTABLE_HOOK_PRIORITY
	flowtableHookDevices  = 3 // NFTA_FLOWTABLE_HOOK_DEVS
	deviceName            = 1 // NFTA_DEVICE_NAME
	hookIngress           = 0 // NF_NETDEV_INGRESS
)

// AddFlowtable adds the flowtable if there is none, and devices to those in it.
func (b *Batch) AddFlowtable(devices ...string) {
	b.flowtable(unix.NFT_MSG_NEWFLOWTABLE, unix.NLM_F_CREATE, devices)
}

// DeleteFlowtable deletes devices from the flowtable; without any, the flowtable, which no rule may use any
// more.
func (b *Batch) DeleteFlowtable(devices ...string) {
	b.flowtable(unix.NFT_MSG_DELFLOWTABLE, 0, devices)
}

func (b *Batch) flowtable(kind, flags uint16, devices []string) {
	b.add(kind, flags, func(m *message) {
		m.object(b.table, flowtableName, rules.Flowtable)
		if kind == unix.NFT_MSG_DELFLOWTABLE && len(devices) == 0 {
			return
		}
		hook := m.nest(flowtableHook)
		m.number(flowtableHookNum, hookIngress)
		m.number(flowtableHookPriority, 0)
		if len(devices) > 0 {
			list := m.nest(flowtableHookDevices)
			for _, d := range devices {
				m.text(deviceName, d)
			}
			m.endNest(list)
		}
		m.endNest(hook)
	})
}

// Devices returns the devices in the flowtable of nkp's table, in no order; has is false if there is no
// flowtable.
func (c *Conn) Devices(f k8s.Family) (devices []string, has bool, err error) {
	err = c.objects(unix.NFT_MSG_GETFLOWTABLE, family(f),
		func(m *message) { m.text(tableName, rules.TableName) },
		func() { devices, has = nil, false },
		func(b []byte, note func(...[]byte)) {
			if text(attribute(b, tableName)) != rules.TableName ||
				text(attribute(b, flowtableName)) != rules.Flowtable {
				return
			}
			has = true
			note(attribute(b, flowtableHandle))
			for _, d := range attributes(attribute(attribute(b, flowtableHook), flowtableHookDevices)) {
				devices = append(devices, text(d))
			}
		})
	return devices, has, wrap("flowtable", err)
}
