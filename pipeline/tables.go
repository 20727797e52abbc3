package pipeline

// tableNames say what each table is for, in few words.
var tableNames = map[int]string{
	tableEntry:     "where from",
	tableServices:  "which Service",
	tableOutput:    "hairpin, masquerade",
	tableTrack:     "conntrack, un-NAT",
	tablePins:      "affinity: learned pins",
	tablePinned:    "affinity: the endpoint",
	tableRanges:    "source ranges",
	tableReject:    "refuse",
	tableLearn:     "affinity: make a pin",
	tableWide:      "many endpoints",
	tableCount:     "counters",
	tableSeed:      "affinity: the seed",
	tableFragments: "UDP in fragments",
	tableSlots:     "consistent choice",
	tableUnSNAT:    "un-SNAT of replies",
	tableDeliver:   "next hop",
}

// TableName returns a short description of a table, or "" if it is not one of nkp's. The number is relative
// to Layout.TableBase.
func TableName(table int) string { return tableNames[table] }
