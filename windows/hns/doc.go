// Package hns defines the objects of the Windows Host Networking Service (HNS), networks, endpoints and load
// balancers, as the HCN API spells them (schema 2.0), and the few calls that a Service proxy needs.
//
// Everything but the calls themselves compiles on every system, so that the objects to program can be
// computed and tested anywhere. Open returns the machine's own HNS, on Windows only, through
// github.com/Microsoft/hcsshim/hcn.
//
// It has no notion of Services. Start reading at Host.
//
// Set NKP_DEBUG_HNS=1 in the environment to have the requests that create, change and delete objects logged
// at level debug, with their answers (hcsshim's own log).
package hns
