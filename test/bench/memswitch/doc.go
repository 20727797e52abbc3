// Package memswitch is an OpenFlow 1.5 switch in memory, as far as nkp speaks to one: bundles of flow and group
// modifications, meters, reading back, counts. It keeps what it is told and forwards nothing, so that many agents can run
// on one machine. Messages are kept as they came; nothing is interpreted beyond what identifies a flow or group, so a
// message that Open vSwitch would refuse is accepted here.
//
// Start reading at [Listen]. Section numbers are those of the OpenFlow Switch Specification 1.5.1.
package memswitch
