// Package hnsfake is a Host Networking Service for tests: a stateful fake at the level of the DLL calls (HcnCreateEndpoint,
// HNSCall, ...), JSON in and JSON out. Its state outlives the agent; the test sets its version, makes calls fail, and reads
// the log of calls.
//
// It is spoken to in two ways: in the process, as an hns.Host that makes the calls hcsshim would make (Server.Host), and over
// loopback TCP by the two DLLs of test/k8s/windows, so that unmodified Windows programs meet it under Wine (Server.Serve).
//
// How HNS really validates and what its data path does is not known here: the fake holds what was seen and documented,
// and is strict where that costs nothing.
package hnsfake
