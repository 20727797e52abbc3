package ovsdb

import (
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// The columns that are read, of the tables that are read; ovs-vswitchd.conf.db(5).
// A column left out here costs nothing: Interface.statistics alone changes every
// five seconds for each port.

type rootRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Bridges     []string          `ovsdb:"bridges"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
	OVSVersion  *string           `ovsdb:"ovs_version"`
}

type bridgeRow struct {
	UUID         string            `ovsdb:"_uuid"`
	Name         string            `ovsdb:"name"`
	DatapathType string            `ovsdb:"datapath_type"`
	DatapathID   *string           `ovsdb:"datapath_id"`
	Protocols    []string          `ovsdb:"protocols"`
	FailMode     *string           `ovsdb:"fail_mode"`
	Controller   []string          `ovsdb:"controller"`
	ExternalIDs  map[string]string `ovsdb:"external_ids"`
	Ports        []string          `ovsdb:"ports"`
}

type portRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	Interfaces  []string          `ovsdb:"interfaces"`
	Tag         *int              `ovsdb:"tag"`
	Trunks      []int             `ovsdb:"trunks"`
	VLANMode    *string           `ovsdb:"vlan_mode"`
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
}

const database = "Open_vSwitch"

func newModel() (model.ClientDBModel, error) {
	return model.NewClientDBModel(database, map[string]model.Model{
		database:    &rootRow{},
		"Bridge":    &bridgeRow{},
		"Port":      &portRow{},
		"Interface": &interfaceRow{},
	})
}

// newMonitor asks for exactly the columns of the rows above.
func newMonitor() *client.Monitor {
	return &client.Monitor{
		Method:            ovsdb.ConditionalMonitorSinceRPC,
		LastTransactionID: "00000000-0000-0000-0000-000000000000", // none: everything
		Tables: []client.TableMonitor{
			{Table: database, Fields: []string{"bridges", "external_ids", "ovs_version"}},
			{Table: "Bridge", Fields: []string{"name", "datapath_type", "datapath_id", "protocols", "fail_mode", "controller", "external_ids", "ports"}},
			{Table: "Port", Fields: []string{"name", "interfaces", "tag", "trunks", "vlan_mode", "external_ids"}},
			{Table: "Interface", Fields: []string{"name", "type", "ofport", "mac_in_use", "external_ids", "error"}},
		},
	}
}

// rows is everything that a snapshot is made of.
type rows struct {
	roots      []rootRow
	bridges    []bridgeRow
	ports      []portRow
	interfaces []interfaceRow
}
