// Package traffic makes connections and requests as fast as one or more clients can, and says how many and how long each
// took. The client is a program of its own, started in a pod's network namespace by running the benchmark's binary again
// (see [Main]); it uses the kernel's calls directly, so that it costs little beside what it measures.
//
// Throughput is measured by blocks, whose end the server confirms: then a client can change between two paths many times a
// second without the one's packets in flight being the other's load. iperf3 needs a run of a second at least for each.
package traffic
