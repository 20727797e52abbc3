// Package rig sets up what is measured: an API server with objects, a node with pods for each proxy, and the proxies
// themselves, with their figures (CPU time, memory). It measures nothing by itself.
//
// Start reading at [API] and [Node].
package rig
