// Package api is what nkp's control socket speaks: its paths, what they answer, and [Caller], which asks a
// running agent. package agent serves it.
//
// HTTP runs over a unix socket that only root may use, or over a named pipe for Administrators only. GET
// changes nothing; POST sends a probe or sets the log level. A request has its parameters in the URL, its
// answer is JSON, and of an error a text. Start reading at [Caller].
package api
