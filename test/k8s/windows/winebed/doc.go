// Package winebed makes a Windows to run programs in: a Wine prefix with the DLLs of ../shim, whose HNS is a fake of package hnsfake. It
// builds what it needs once for a test binary, and everything it makes goes with the test.
//
// Start reading at New.
package winebed
