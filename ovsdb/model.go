package ovsdb

import (
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// The tables and columns that are read; see ovs-vswitchd.conf.db(5). A column left
// out here causes no updates: Interface.statistics alone changes every five seconds
// for each port.

type rootRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Bridges     []string          `ovsdb:"bridges"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
	OtherConfig map[string]string `ovsdb:"other_config"`
	OVSVersion  *string           `ovsdb:"ovs_version"`
}

type bridgeRow struct {
	UUID         string            `ovsdb:"_uuid"`
	Name         string            `ovsdb:"name"`
	DatapathType string            `ovsdb:"datapath_type"`
	Protocols    []string          `ovsdb:"protocols"`
	FailMode     *string           `ovsdb:"fail_mode"`
	Controller   []string          `ovsdb:"controller"`
	ExternalIDs  map[string]string `ovsdb:"external_ids"`
	Ports        []string          `ovsdb:"ports"`
	Mirrors      []string          `ovsdb:"mirrors"`
}

type mirrorRow struct {
	UUID       string  `ovsdb:"_uuid"`
	Name       string  `ovsdb:"name"`
	SelectAll  bool    `ovsdb:"select_all"`
	OutputPort *string `ovsdb:"output_port"`
}

// controllerRow has a status whose sec_since_connect changes every five seconds. Snapshots leave it out, so
// that they do not change.
type controllerRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Target      string            `ovsdb:"target"`
	IsConnected bool              `ovsdb:"is_connected"`
	Status      map[string]string `ovsdb:"status"`
}

type portRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	Interfaces  []string          `ovsdb:"interfaces"`
	Tag         *int              `ovsdb:"tag"`
	Trunks      []int             `ovsdb:"trunks"`
	VLANMode    *string           `ovsdb:"vlan_mode"`
	QoS         *string           `ovsdb:"qos"`
	Status      map[string]string `ovsdb:"status"`
	RSTPStatus  map[string]string `ovsdb:"rstp_status"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

type interfaceRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	Type        string            `ovsdb:"type"`
	OFPort      *int              `ovsdb:"ofport"`
	MACInUse    *string           `ovsdb:"mac_in_use"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
	Error       *string           `ovsdb:"error"`
	LinkState   *string           `ovsdb:"link_state"`
	AdminState  *string           `ovsdb:"admin_state"`
	Policing    int               `ovsdb:"ingress_policing_rate"`
	MTU         *int              `ovsdb:"mtu"`
}

const database = "Open_vSwitch"

func newModel() (model.ClientDBModel, error) {
	return model.NewClientDBModel(database, map[string]model.Model{
		database:     &rootRow{},
		"Bridge":     &bridgeRow{},
		"Controller": &controllerRow{},
		"Mirror":     &mirrorRow{},
		"Port":       &portRow{},
		"Interface":  &interfaceRow{},
	})
}

// newMonitor asks for exactly the columns of the rows above.
func newMonitor() map[string]ovsdb.MonitorRequest {
	columns := func(names ...string) ovsdb.MonitorRequest {
		return ovsdb.MonitorRequest{Columns: names, Select: ovsdb.NewDefaultMonitorSelect()}
	}
	return map[string]ovsdb.MonitorRequest{
		database:     columns("bridges", "external_ids", "other_config", "ovs_version"),
		"Controller": columns("target", "is_connected", "status"),
		"Bridge": columns(
			"name", "datapath_type", "protocols", "fail_mode",
			"controller", "external_ids", "ports", "mirrors",
		),
		"Port": columns(
			"name", "interfaces", "tag", "trunks", "vlan_mode",
			"external_ids", "qos", "status", "rstp_status",
		),
		"Mirror": columns("name", "select_all", "output_port"),
		"Interface": columns(
			"name", "type", "ofport", "mac_in_use", "external_ids",
			"error", "link_state", "admin_state", "ingress_policing_rate", "mtu",
		),
	}
}

// rows is everything that a snapshot is made of.
type rows struct {
	roots       []rootRow
	bridges     []bridgeRow
	controllers []controllerRow
	mirrors     []mirrorRow
	ports       []portRow
	interfaces  []interfaceRow
}
