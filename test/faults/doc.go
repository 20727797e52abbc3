//go:build linux

// Package faults disturbs nkp and the switch while clients use Services, and counts what breaks. A fleet of clients in pods,
// on another node and outside the cluster holds long connections and opens new ones all the time to dozens of Services; a
// script drawn from a seed kills, stops, cuts, delays, deletes and floods. See test/testbed for the topology.
//
// [TestFaults] has two parts. While the agent alone is disturbed (agentfaults_test.go: the agent itself, its ways to the switch
// and the switch's database, changes of other Services) no connection to a stable Service may fail. While the
// switch is disturbed (switchfaults_test.go) connections may fail, and must work again afterwards without help. After each
// part `nkp diff` must find no difference, and the agent's goroutines, file descriptors and memory must be what they were.
// [TestSwitchSurvives] has clients that end a switch with a fault as soon as the pipeline translates something into itself.
// [TestInterruptedFlush] cuts the connection, or kills the agent, between a change and the forgetting of UDP connections;
// [TestManyStaleConnections] has 25,000 of them, in the long form 500,000, when a Service loses 4,000 endpoints.
// [TestLyingSwitch] has a switch that claims, forgets and floods.
// No test measures a time. A connection has failed when it is refused or broken, or when it heard nothing for a while and then a
// control, asked directly at an endpoint, was answered before it.
//
//	make faults                       the short form
//	make faults NKP_FAULTS_LONG=1     the long form: half an hour at most, with a million connections
//
// In the long form the agent alone is disturbed until a million connections were made or 27 minutes have passed, then the switch.
// The last line says what was counted.
//
// Environment variables: NKP_SEED repeats a script (each run prints its seed), NKP_FAULTS_TIME is how long to disturb
// in all (a duration such as 10m), NKP_FAULTS_LONG takes the long form, NKP_BINARY is the binary under test.
package faults
