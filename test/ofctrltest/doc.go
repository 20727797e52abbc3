// Package ofctrltest has what tests put in a switch's place: [Switch], an OpenFlow 1.5 switch in memory, as far as nkp speaks to one,
// and [Proxy], which stands before a real switch and changes what passes.
//
// A Switch takes bundles of flow and group modifications, and meters, keeps them, and reports them when it is read back. It
// forwards nothing. Messages are kept as they came; nothing is interpreted beyond what identifies a flow, group or meter, so a message
// that Open vSwitch would refuse is accepted here. A test that wants another behaviour takes over the connection ([Options.Serve]) and
// leaves to [Session.Answer] what it does not change.
//
// Start reading at [Listen]. Section numbers are those of the OpenFlow Switch Specification 1.5.1.
package ofctrltest
