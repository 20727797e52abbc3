//lint:file-ignore SA4016 a code of 0 is written, too: the pairs read as they do in the specification

package ofctrl

import "fmt"

// typeExperimenterError is OFPET_EXPERIMENTER: the code's meaning is the experimenter's (OpenFlow 1.5.1 §7.5.4).
const typeExperimenterError = 0xffff

// Error types and codes that the code of this package acts on.
const (
	errBadRequest  = 1
	errMeterFailed = 12
	errBundle      = 17

	codeBadType       = 1
	codeBadVendor     = 3
	codeBadSubtype    = 4
	codeMeterExists   = 1
	codeMsgFailed     = 13
	codeBundleTimeout = 14
)

// reason returns the name of an OFPT_ERROR as Open vSwitch prints it, else its numbers.
func reason(typ, code uint16, experimenter uint32) string {
	switch {
	case typ == typeExperimenterError && experimenter == vendorNX:
		if s := nxReasons[code]; s != "" {
			return s
		}
		return fmt.Sprintf("Open vSwitch error %d", code)
	case typ == typeExperimenterError:
		return fmt.Sprintf("experimenter %#x error %d", experimenter, code)
	}
	if s := reasons[uint32(typ)<<16|uint32(code)]; s != "" {
		return s
	}
	return fmt.Sprintf("error type %d code %d", typ, code)
}

// reasons are the errors of OpenFlow 1.5 by type<<16|code (OpenFlow 1.5.1 §7.5.4), under the names that
// ovs-ofctl prints.
var reasons = map[uint32]string{
	0<<16 | 0:   "OFPHFC_INCOMPATIBLE",
	0<<16 | 1:   "OFPHFC_EPERM",
	1<<16 | 0:   "OFPBRC_BAD_VERSION",
	1<<16 | 1:   "OFPBRC_BAD_TYPE",
	1<<16 | 2:   "OFPBRC_BAD_STAT",
	1<<16 | 3:   "OFPBRC_BAD_VENDOR",
	1<<16 | 4:   "OFPBRC_BAD_SUBTYPE",
	1<<16 | 5:   "OFPBRC_EPERM",
	1<<16 | 6:   "OFPBRC_BAD_LEN",
	1<<16 | 7:   "OFPBRC_BUFFER_EMPTY",
	1<<16 | 8:   "OFPBRC_BUFFER_UNKNOWN",
	1<<16 | 9:   "OFPBRC_BAD_TABLE_ID",
	1<<16 | 10:  "OFPBRC_IS_SECONDARY",
	1<<16 | 11:  "OFPBRC_BAD_PORT",
	1<<16 | 12:  "OFPBRC_BAD_PACKET",
	1<<16 | 13:  "OFPBRC_MULTIPART_BUFFER_OVERFLOW",
	1<<16 | 14:  "OFPBRC_MULTIPART_REQUEST_TIMEOUT",
	1<<16 | 15:  "OFPBRC_MULTIPART_REPLY_TIMEOUT",
	1<<16 | 16:  "OFPBRC_MULTIPART_BAD_SCHED",
	1<<16 | 17:  "OFPBRC_PIPELINE_FIELDS_ONLY",
	1<<16 | 18:  "OFPBRC_UNKNOWN",
	2<<16 | 0:   "OFPBAC_BAD_TYPE",
	2<<16 | 1:   "OFPBAC_BAD_LEN",
	2<<16 | 2:   "OFPBAC_BAD_VENDOR",
	2<<16 | 3:   "OFPBAC_BAD_VENDOR_TYPE",
	2<<16 | 4:   "OFPBAC_BAD_OUT_PORT",
	2<<16 | 5:   "OFPBAC_BAD_ARGUMENT",
	2<<16 | 6:   "OFPBAC_EPERM",
	2<<16 | 7:   "OFPBAC_TOO_MANY",
	2<<16 | 8:   "OFPBAC_BAD_QUEUE",
	2<<16 | 9:   "OFPBAC_BAD_OUT_GROUP",
	2<<16 | 10:  "OFPBAC_MATCH_INCONSISTENT",
	2<<16 | 11:  "OFPBAC_UNSUPPORTED_ORDER",
	2<<16 | 12:  "OFPBAC_BAD_TAG",
	2<<16 | 13:  "OFPBAC_BAD_SET_TYPE",
	2<<16 | 14:  "OFPBAC_BAD_SET_LEN",
	2<<16 | 15:  "OFPBAC_BAD_SET_ARGUMENT",
	2<<16 | 16:  "OFPBAC_BAD_SET_MASK",
	2<<16 | 17:  "OFPBAC_BAD_METER",
	3<<16 | 0:   "OFPBIC_UNKNOWN_INST",
	3<<16 | 1:   "OFPBIC_UNSUP_INST",
	3<<16 | 2:   "OFPBIC_BAD_TABLE_ID",
	3<<16 | 3:   "OFPBIC_UNSUP_METADATA",
	3<<16 | 4:   "OFPBIC_UNSUP_METADATA_MASK",
	3<<16 | 5:   "OFPBIC_BAD_EXPERIMENTER",
	3<<16 | 6:   "OFPBIC_BAD_EXP_TYPE",
	3<<16 | 7:   "OFPBIC_BAD_LEN",
	3<<16 | 8:   "OFPBIC_EPERM",
	3<<16 | 9:   "OFPBIC_DUP_INST",
	4<<16 | 0:   "OFPBMC_BAD_TYPE",
	4<<16 | 1:   "OFPBMC_BAD_LEN",
	4<<16 | 2:   "OFPBMC_BAD_TAG",
	4<<16 | 3:   "OFPBMC_BAD_DL_ADDR_MASK",
	4<<16 | 4:   "OFPBMC_BAD_NW_ADDR_MASK",
	4<<16 | 5:   "OFPBMC_BAD_WILDCARDS",
	4<<16 | 6:   "OFPBMC_BAD_FIELD",
	4<<16 | 7:   "OFPBMC_BAD_VALUE",
	4<<16 | 8:   "OFPBMC_BAD_MASK",
	4<<16 | 9:   "OFPBMC_BAD_PREREQ",
	4<<16 | 10:  "OFPBMC_DUP_FIELD",
	4<<16 | 11:  "OFPBMC_EPERM",
	5<<16 | 0:   "OFPFMFC_UNKNOWN",
	5<<16 | 1:   "OFPFMFC_TABLE_FULL",
	5<<16 | 2:   "OFPFMFC_BAD_TABLE_ID",
	5<<16 | 3:   "OFPFMFC_OVERLAP",
	5<<16 | 4:   "OFPFMFC_EPERM",
	5<<16 | 5:   "OFPFMFC_BAD_TIMEOUT",
	5<<16 | 6:   "OFPFMFC_BAD_COMMAND",
	5<<16 | 7:   "OFPFMFC_BAD_FLAGS",
	5<<16 | 8:   "OFPFMFC_CANT_SYNC",
	5<<16 | 9:   "OFPFMFC_BAD_PRIORITY",
	5<<16 | 10:  "OFPFMFC_IS_SYNC",
	6<<16 | 0:   "OFPGMFC_GROUP_EXISTS",
	6<<16 | 1:   "OFPGMFC_INVALID_GROUP",
	6<<16 | 2:   "OFPGMFC_WEIGHT_UNSUPPORTED",
	6<<16 | 3:   "OFPGMFC_OUT_OF_GROUPS",
	6<<16 | 4:   "OFPGMFC_OUT_OF_BUCKETS",
	6<<16 | 5:   "OFPGMFC_CHAINING_UNSUPPORTED",
	6<<16 | 6:   "OFPGMFC_WATCH_UNSUPPORTED",
	6<<16 | 7:   "OFPGMFC_LOOP",
	6<<16 | 8:   "OFPGMFC_UNKNOWN_GROUP",
	6<<16 | 9:   "OFPGMFC_CHAINED_GROUP",
	6<<16 | 10:  "OFPGMFC_BAD_TYPE",
	6<<16 | 11:  "OFPGMFC_BAD_COMMAND",
	6<<16 | 12:  "OFPGMFC_BAD_BUCKET",
	6<<16 | 13:  "OFPGMFC_BAD_WATCH",
	6<<16 | 14:  "OFPGMFC_EPERM",
	6<<16 | 15:  "OFPGMFC_UNKNOWN_BUCKET",
	6<<16 | 16:  "OFPGMFC_BUCKET_EXISTS",
	7<<16 | 0:   "OFPPMFC_BAD_PORT",
	7<<16 | 1:   "OFPPMFC_BAD_HW_ADDR",
	7<<16 | 2:   "OFPPMFC_BAD_CONFIG",
	7<<16 | 3:   "OFPPMFC_BAD_ADVERTISE",
	7<<16 | 4:   "OFPPMFC_EPERM",
	8<<16 | 0:   "OFPTMFC_BAD_TABLE",
	8<<16 | 1:   "OFPTMFC_BAD_CONFIG",
	8<<16 | 2:   "OFPTMFC_EPERM",
	9<<16 | 0:   "OFPQOFC_BAD_PORT",
	9<<16 | 1:   "OFPQOFC_BAD_QUEUE",
	9<<16 | 2:   "OFPQOFC_EPERM",
	10<<16 | 0:  "OFPSCFC_BAD_FLAGS",
	10<<16 | 1:  "OFPSCFC_BAD_LEN",
	10<<16 | 2:  "OFPSCFC_EPERM",
	11<<16 | 0:  "OFPRRFC_STALE",
	11<<16 | 1:  "OFPRRFC_UNSUP",
	11<<16 | 2:  "OFPRRFC_BAD_ROLE",
	11<<16 | 3:  "OFPRRFC_ID_UNSUP",
	11<<16 | 4:  "OFPRRFC_ID_IN_USE",
	12<<16 | 0:  "OFPMMFC_UNKNOWN",
	12<<16 | 1:  "OFPMMFC_METER_EXISTS",
	12<<16 | 2:  "OFPMMFC_INVALID_METER",
	12<<16 | 3:  "OFPMMFC_UNKNOWN_METER",
	12<<16 | 4:  "OFPMMFC_BAD_COMMAND",
	12<<16 | 5:  "OFPMMFC_BAD_FLAGS",
	12<<16 | 6:  "OFPMMFC_BAD_RATE",
	12<<16 | 7:  "OFPMMFC_BAD_BURST",
	12<<16 | 8:  "OFPMMFC_BAD_BAND",
	12<<16 | 9:  "OFPMMFC_BAD_BAND_VALUE",
	12<<16 | 10: "OFPMMFC_OUT_OF_METERS",
	12<<16 | 11: "OFPMMFC_OUT_OF_BANDS",
	13<<16 | 0:  "OFPTFFC_BAD_TABLE",
	13<<16 | 1:  "OFPTFFC_BAD_METADATA",
	13<<16 | 5:  "OFPTFFC_EPERM",
	13<<16 | 6:  "OFPTFFC_BAD_CAPA",
	13<<16 | 7:  "OFPTFFC_BAD_MAX_ENT",
	13<<16 | 8:  "OFPTFFC_BAD_FEATURES",
	13<<16 | 9:  "OFPTFFC_BAD_COMMAND",
	13<<16 | 10: "OFPTFFC_TOO_MANY",
	14<<16 | 0:  "OFPBPC_BAD_TYPE",
	14<<16 | 1:  "OFPBPC_BAD_LEN",
	14<<16 | 2:  "OFPBPC_BAD_VALUE",
	14<<16 | 3:  "OFPBPC_TOO_MANY",
	14<<16 | 4:  "OFPBPC_DUP_TYPE",
	14<<16 | 5:  "OFPBPC_BAD_EXPERIMENTER",
	14<<16 | 6:  "OFPBPC_BAD_EXP_TYPE",
	14<<16 | 7:  "OFPBPC_BAD_EXP_VALUE",
	14<<16 | 8:  "OFPBPC_EPERM",
	15<<16 | 0:  "OFPACFC_INVALID",
	15<<16 | 1:  "OFPACFC_UNSUPPORTED",
	15<<16 | 2:  "OFPACFC_EPERM",
	16<<16 | 0:  "OFPMOFC_UNKNOWN",
	16<<16 | 1:  "OFPMOFC_MONITOR_EXISTS",
	16<<16 | 2:  "OFPMOFC_INVALID_MONITOR",
	16<<16 | 3:  "OFPMOFC_UNKNOWN_MONITOR",
	16<<16 | 4:  "OFPMOFC_BAD_COMMAND",
	16<<16 | 5:  "OFPMOFC_BAD_FLAGS",
	16<<16 | 6:  "OFPMOFC_BAD_TABLE_ID",
	16<<16 | 7:  "OFPMOFC_BAD_OUT",
	17<<16 | 0:  "OFPBFC_UNKNOWN",
	17<<16 | 1:  "OFPBFC_EPERM",
	17<<16 | 2:  "OFPBFC_BAD_ID",
	17<<16 | 3:  "OFPBFC_BUNDLE_EXIST",
	17<<16 | 4:  "OFPBFC_BUNDLE_CLOSED",
	17<<16 | 5:  "OFPBFC_OUT_OF_BUNDLES",
	17<<16 | 6:  "OFPBFC_BAD_TYPE",
	17<<16 | 7:  "OFPBFC_BAD_FLAGS",
	17<<16 | 8:  "OFPBFC_MSG_BAD_LEN",
	17<<16 | 9:  "OFPBFC_MSG_BAD_XID",
	17<<16 | 10: "OFPBFC_MSG_UNSUP",
	17<<16 | 11: "OFPBFC_MSG_CONFLICT",
	17<<16 | 12: "OFPBFC_MSG_TOO_MANY",
	17<<16 | 13: "OFPBFC_MSG_FAILED",
	17<<16 | 14: "OFPBFC_TIMEOUT",
	17<<16 | 15: "OFPBFC_BUNDLE_IN_PROGRESS",
	17<<16 | 16: "OFPBFC_SCHED_NOT_SUPPORTED",
	17<<16 | 17: "OFPBFC_SCHED_FUTURE",
	17<<16 | 18: "OFPBFC_SCHED_PAST",
}

// nxReasons are Open vSwitch's own errors, by code, under experimenter vendorNX.
var nxReasons = map[uint16]string{
	2:  "NXBRC_NXM_INVALID",
	3:  "NXBRC_NXM_BAD_TYPE",
	4:  "NXBRC_MUST_BE_ZERO",
	5:  "NXBRC_BAD_REASON",
	9:  "NXBRC_FM_BAD_EVENT",
	10: "NXBRC_UNENCODABLE_ERROR",
	11: "NXBAC_MUST_BE_ZERO",
	12: "NXFMFC_HARDWARE",
	13: "NXFMFC_BAD_TABLE_ID",
	15: "NXBAC_BAD_CONJUNCTION",
	16: "NXTTMFC_BAD_COMMAND",
	17: "NXTTMFC_BAD_OPT_LEN",
	18: "NXTTMFC_BAD_FIELD_IDX",
	19: "NXTTMFC_TABLE_FULL",
	20: "NXTTMFC_ALREADY_MAPPED",
	21: "NXTTMFC_DUP_ENTRY",
	22: "OFPBFC_BAD_VERSION",
	23: "NXQOFC_QUEUE_ERROR",
	34: "NXR_NOT_SUPPORTED",
	35: "NXR_STALE",
	36: "NXST_NOT_CONFIGURED",
	37: "NXFMFC_INVALID_TLV_FIELD",
	38: "NXTTMFC_INVALID_TLV_DEL",
	39: "NXBAC_BAD_HEADER_TYPE",
	40: "NXBAC_UNKNOWN_ED_PROP",
	41: "NXBAC_BAD_ED_PROP",
	42: "NXBAC_CT_DATAPATH_SUPPORT",
	43: "NXBMC_CT_DATAPATH_SUPPORT",
	44: "NXTFFC_DUP_TABLE",
}
