package agent

// Version is the version of this build; the linker sets it (Makefile).
var Version = "0.1.0-dev"
